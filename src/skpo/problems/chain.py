"""`builtin:chain?steps=10&modulus=10&operations=+-*&seed=0&size=256&split=train`: left-to-right modular arithmetic.

A problem of four steps, modulo 10, and its only right completion:

    3a+8b*7c-2d+6=   ->   a3+8=1;b1*7=7;c7-2=5;d5+6=1;#51

Each operation is labelled with a letter, so that a model can find in the problem where a segment stopped. The answer,
after the `#`, is the last *two* states ("5" and "1").

Why two states, and how problems are drawn: were operations and operands simply uniform, multiplication would make some
answers far likelier than others ("00" above all), and a policy that guesses would be paid for it. So the answer is
drawn first, in shuffled rounds of all possible answers, and the last two operations are drawn among those that lead to
it. Every answer is then exactly as likely as any other: a constant guess is right in 1 / modulus**2 of all problems
(1 % modulo 10), and parameters for which it would be right more often are refused. The limit is on constant guesses:
who guesses one state and works out the step after it is right in 1 / modulus of all problems.

`*0` is never drawn, since it would make all earlier steps irrelevant.

Splits are decided by a hash of the problem text, so that no training problem of any seed, size or setting can be a
held-out problem of any other.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from skpo.errors import ProblemError, unknown
from skpo.problems.base import Problem
from skpo.problems.query import parse_int

SPLITS = ("train", "heldout")
MAX_GUESS = 0.01
HELDOUT_SHARE = 4  # one text in so many is held out
MAX_TRIES = 3000  # draws for one answer before the problems count as used up
DEFAULTS = {"steps": "10", "modulus": "10", "operations": "+-*", "seed": "0", "size": "256", "split": "train"}


def apply(state: int, operation: str, operand: int, modulus: int) -> int:
    """One step: `state operation operand`, modulo `modulus`."""
    if operation == "+":
        return (state + operand) % modulus
    return (state - operand) % modulus if operation == "-" else (state * operand) % modulus


def split_of(text: str) -> str:
    """The split that a problem text belongs to, whoever draws it: "train" (3 of 4) or "heldout"."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"skpo-chain").digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


@dataclass(frozen=True)
class Chain:
    """A family of chain problems.

    steps:      operations in a problem, 2 to 26.
    modulus:    states are 0 ... modulus - 1, written with as many digits as `modulus - 1` has.
    operations: the signs to draw from, out of `+-*`.

    Raises `ProblemError` where a constant guess would be right in more than 1 % of the problems.
    """

    steps: int = 10
    modulus: int = 10
    operations: str = "+-*"
    moves: dict[tuple[int, int], list[tuple[str, int]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        moves: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for state in range(self.modulus):
            for operation in self.operations:
                for operand in range(1 if operation == "*" else 0, self.modulus):
                    after = apply(state, operation, operand, self.modulus)
                    moves.setdefault((state, after), []).append((operation, operand))
        object.__setattr__(self, "moves", moves)
        if self.guess_rate > MAX_GUESS:
            raise ProblemError(
                f"chain: with modulus={self.modulus} and operations={self.operations} a constant guess is right in "
                f"{self.guess_rate:.1%} of the problems (limit {MAX_GUESS:.0%}). Use a modulus of 10 or more, and + or -."
            )

    @property
    def answers(self) -> list[tuple[int, int]]:
        """Every pair of last states that some problem leads to."""
        return sorted(self.moves)

    @property
    def guess_rate(self) -> float:
        """How often the best constant guess is right: answers are drawn uniformly from `answers`."""
        return 1 / len(self.moves)

    @property
    def width(self) -> int:
        """Digits of a written number."""
        return len(str(self.modulus - 1))

    def number(self, value: int) -> str:
        """A state or operand as it is written: "7", or "07" with a modulus above 10."""
        return f"{value:0{self.width}d}"

    # --- problems -------------------------------------------------------------------------------------------------

    def draw(self, rng: random.Random, answer: tuple[int, int]) -> str | None:
        """One problem text with this answer; None where the first states drawn can't lead to it."""
        first = below(rng, self.modulus)
        moves = self.walk(rng, first, answer)
        if moves is None:
            return None
        written = (f"{ascii_lowercase[i]}{sign}{self.number(n)}" for i, (sign, n) in enumerate(moves))
        return f"{self.number(first)}{''.join(written)}="

    def walk(self, rng: random.Random, first: int, answer: tuple[int, int]) -> list[tuple[str, int]] | None:
        """Moves from the state `first` whose last two states are `answer`; None where those drawn can't lead to it."""
        state = first
        moves: list[tuple[str, int]] = []
        for _ in range(self.steps - 2):
            operation = self.operations[below(rng, len(self.operations))]
            low = 1 if operation == "*" else 0
            operand = low + below(rng, self.modulus - low)
            moves.append((operation, operand))
            state = apply(state, operation, operand, self.modulus)
        for target in answer:
            options = self.moves.get((state, target))
            if not options:
                return None
            moves.append(options[below(rng, len(options))])
            state = target
        return moves

    def texts(self, seed: int | str, split: str = "train") -> Iterator[str]:
        """Distinct problem texts of one split, without end; answers come in shuffled rounds of all of them.

        The same seed always gives the same texts in the same order, on any machine. Raises `ProblemError` once there
        are no more distinct problems to be found.
        """
        rng = random.Random(f"chain/{self.steps}/{self.modulus}/{self.operations}/{split}/{seed}")
        seen: set[str] = set()
        while True:
            for answer in sorted(self.answers, key=lambda _: rng.random()):
                for _ in range(MAX_TRIES):
                    text = self.draw(rng, answer)
                    if text is not None and text not in seen and split_of(text) == split:
                        break
                else:
                    raise ProblemError(
                        f"chain: found only {len(seen)} distinct problems with steps={self.steps} and "
                        f"modulus={self.modulus} (split {split}). Use a smaller size, or more steps."
                    )
                seen.add(text)
                yield text

    # --- completions ----------------------------------------------------------------------------------------------

    def parse(self, text: str) -> tuple[int, list[tuple[str, int]]]:
        """The first number and the moves of a problem text. Raises `ProblemError` for anything else."""
        if not re.fullmatch(r"\d+(?:[a-z][-+*]\d+)+=", text):
            raise ProblemError(f'"{text}" is no chain problem. One looks like 3a+8b*7c-2=.')
        parts = re.split(r"[a-z]", text[:-1])
        return int(parts[0]), [(part[0], int(part[1:])) for part in parts[1:]]

    def completion(self, text: str, rng: random.Random | None = None, noise: float = 0.0) -> str:
        """Written steps and answer of a problem, without end-of-sequence: `a3+8=1;b1*7=7;#17`.

        With `noise` each written result is, with that probability, drawn from all numbers alike, the right one among
        them: modulo 10, noise 0.08 makes 7.2 % of the results wrong. Later steps, and the answer, go on from what was
        written.
        """
        first, moves = self.parse(text)
        labelled = [(label, *move) for label, move in zip(ascii_lowercase, moves, strict=False)]
        steps, states = self.walked(first, labelled, rng, noise)
        return f"{''.join(steps)}#{self.number(states[-2])}{self.number(states[-1])}"

    def walked(
        self, first: int, moves: Sequence[tuple[str, str, int]], rng: random.Random | None = None, noise: float = 0.0
    ) -> tuple[list[str], list[int]]:
        """Written steps of (label, operation, operand) moves, each with its `;`, and the states, `first` included."""
        steps: list[str] = []
        states = [state := first]
        for label, operation, operand in moves:
            after = apply(state, operation, operand, self.modulus)
            if rng is not None and rng.random() < noise:
                after = below(rng, self.modulus)
            steps.append(f"{label}{self.number(state)}{operation}{self.number(operand)}={self.number(after)};")
            states.append(after)
            state = after
        return steps, states

    def answer(self, text: str) -> str:
        """The right answer: the last two states, as written after the `#`."""
        return self.completion(text).rpartition("#")[2]


def load_chain(values: dict[str, str], source: str, limit: int | None = None) -> list[Problem]:
    """Problems of `builtin:chain?...`.

    Each has verifier "exact" (the answer is what follows the last `#`) and a column `solution`, its right completion.
    A smaller `size` gives the start of a larger one. Raises `ProblemError` for unknown, malformed or refused parameters.
    """
    for key in values:
        if key not in DEFAULTS:
            raise ProblemError(f"{source}: {unknown('parameter', key, DEFAULTS)}")
    setting = DEFAULTS | values
    operations = setting["operations"]
    if not operations or set(operations) - set("+-*") or len(set(operations)) < len(operations):
        raise ProblemError(f'{source}: operations="{operations}" is none. Use signs out of +-*, each once.')
    if setting["split"] not in SPLITS:
        raise ProblemError(f"{source}: {unknown('split', setting['split'], SPLITS)}")
    size = parse_int(source, "size", setting["size"], 1, 1_000_000)
    chain = Chain(
        steps=parse_int(source, "steps", setting["steps"], 2, len(ascii_lowercase)),
        modulus=parse_int(source, "modulus", setting["modulus"], 2, 100),
        operations=operations,
    )
    texts = chain.texts(parse_int(source, "seed", setting["seed"], 0, 2**63), setting["split"])
    problems = []
    for _, text in zip(range(min(size, limit or size)), texts, strict=False):
        solution = chain.completion(text)
        answer = solution.rpartition("#")[2]
        problems.append(Problem(prompt=text, answer=answer, verifier="exact", columns={"solution": solution}))
    return problems


def below(rng: random.Random, n: int) -> int:
    """A number from 0 to n - 1. From `random()` alone, the one method whose values Python promises never to change."""
    return int(rng.random() * n)
