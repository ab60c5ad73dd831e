"""Which samples of a problem gave the same answer."""

from __future__ import annotations

from collections.abc import Sequence

from skpo.verifiers.base import BaseVerifier

NO_ANSWER = -1


def labels(verifier: BaseVerifier, completions: Sequence[str], correct: Sequence[bool]) -> list[int] | None:
    """A number for each completion, the same for the same answer, counted by first appearance; -1 for no answer.

    Answers are compared in the verifier's normal form (`normal`, `alike`). Where there is one right answer
    (`one_answer`) all correct samples have it, however they write it. None where the verifier's answers can't be
    compared (`votes`): two programs, say.
    """
    if not verifier.votes:
        return None
    known: list[str] = []
    right: int | None = None
    found = []
    for completion, fine in zip(completions, correct, strict=True):
        if fine and verifier.one_answer and right is not None:
            found.append(right)
            continue
        answer = verifier.normal(completion)
        if answer is None and not fine:
            found.append(NO_ANSWER)
            continue
        answer = answer or ""
        number = next((i for i, other in enumerate(known) if other == answer or verifier.alike(other, answer)), None)
        if number is None:
            number = len(known)
            known.append(answer)
        if fine and verifier.one_answer:
            right = number
        found.append(number)
    return found
