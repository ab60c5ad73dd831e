"""VinePPO: where responses are cut, what is sampled from the cuts, advantages by hand, a run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scripted import drive, sample
from token_credit import LetterRenderer, check_micro_batches, check_run

from skpo import get_algorithm
from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.probes import Cuts, probe_plan, step_cuts
from skpo.rollout.types import Group, Request, Sample
from skpo.trainer.batch import step_batch
from skpo.trainer.rollout_log import read_rollouts

PROBLEM, RENDER = Problem("q", "1", id="q"), LetterRenderer()


def cuts_of(text: str, **options: object) -> list[str]:
    """The steps of a text, one token a letter."""
    ids = RENDER.encode(text)
    edges = [0, *step_cuts(ids, RENDER.token_text, Cuts(**options)), len(ids)]  # type: ignore[arg-type]
    return [text[a:b] for a, b in pairwise(edges)]


def test_cuts_after_texts() -> None:
    assert cuts_of("ab;cd;e", after=[";"]) == ["ab;", "cd;", "e"]
    assert cuts_of("ab;cd;", after=[";"]) == ["ab;", "cd;"]  # nothing is left after the last one
    assert cuts_of("a. b.0. c", after=[". "]) == ["a.", " b.0.", " c"]  # the space begins the next step
    assert cuts_of("a\n\nb\nc", after=["\n"]) == ["a\n", "\n", "b\n", "c"]
    assert cuts_of("a\n\nb\nc", after=["\n"], gap=2) == ["a\n", "\nb\nc"]  # "c" alone would be too short
    assert cuts_of("ab", after=[";"]) == ["ab"]
    assert cuts_of("", after=[";"]) == [""]


def test_cuts_before_words_are_at_the_beginning_of_their_sentence() -> None:
    assert cuts_of("a b. So c. d Wait e", before=["So", "Wait"]) == ["a b.", " So c.", " d Wait e"]
    assert cuts_of("So a b", before=["So"]) == ["So a b"]  # nothing stands before it
    assert cuts_of("a. Soa", before=["So"]) == ["a. Soa"]  # a whole word


def test_gap_and_most() -> None:
    text = "ab;c;def;abcd;e"
    assert cuts_of(text, after=[";"], gap=3) == [
        "ab;",
        "c;def;",
        "abcd;e",
    ]  # too short: joined with what follows, or precedes
    assert cuts_of("a;b;c;d;e;f;g;h", after=[";"], most=4) == ["a;b;", "c;d;", "e;f;", "g;h"]
    assert cuts_of("a;b;c;d", after=[";"], most=3) == ["a;b;", "c;", "d"]
    assert cuts_of("a;b;c;d", after=[";"], most=1) == ["a;b;c;d"]
    for wrong in ({"after": ";"}, {"after": [" "]}, {"gap": 0}, {"most": 0}):
        with pytest.raises(ConfigError):
            Cuts(**wrong)  # type: ignore[arg-type]


def test_a_token_over_a_border_belongs_to_the_step_that_it_ends() -> None:
    texts = {1: "a", 2: ";b", 3: "c"}
    assert step_cuts([1, 2, 3], texts.__getitem__, Cuts(after=[";"])) == [2]
    texts = {1: "a.", 2: "", 3: " So"}  # an empty one is of the next step
    assert step_cuts([1, 2, 3], texts.__getitem__, Cuts(before=["So"])) == [1]


def answers(texts: list[str]) -> object:
    """Responses with these texts first; then probes of one token."""

    def answer(i: int, request: Request) -> list[Sample]:
        if i == 0:
            return [sample([*RENDER.encode(t), 0], finished=True) for t in texts]
        return [sample([100], finished=True) for _ in range(request.n)]

    return answer


def plan(n: int = 2, **options: object) -> tuple[Group, list[Request]]:
    context = PlanContext(RENDER, n, 20, rng=np.random.default_rng(0))
    texts = ["ab;cd;ef", "ab;gh;ef"]
    return drive(probe_plan(PROBLEM, context, n=3, cuts=Cuts(after=[";"]), **options), answers(texts))  # type: ignore[arg-type]


def test_what_is_asked_for() -> None:
    group, requests = plan()
    states = ["", "ab;", "ab;cd;", "ab;gh;"]  # the first two are shared by both responses
    assert [r.context for r in requests] == [(1, 2), *((1, 2, *RENDER.encode(s)) for s in states)]
    assert [(r.n, r.max_tokens) for r in requests] == [(2, 20), (3, 20), (3, 17), (3, 14), (3, 14)]
    assert [s.info["cuts"] for s in group.samples] == [[3, 6], [3, 6]]
    assert [(s.info["parent"], s.info["cut"]) for s in group.unused[::3]] == [(0, 0), (0, 3), (0, 6), (1, 6)]
    assert all(s.info["verify"] for s in group.unused)
    assert [RENDER.decode(s.prefix) for s in group.unused[::3]] == states
    assert group.generated_tokens == 2 * 9 + 12


def test_advantages_of_one_response_with_two_cuts() -> None:
    """K = 2, probes right: 1 of 2 from the prompt, 2 of 2 after step 1, 0 of 2 after step 2; the response itself is right.

    V = .5, 1, 0, and 1 at the end: the steps gain 1 - .5 = .5, 0 - 1 = -1 and 1 - 0 = 1.
    """
    algorithm = get_algorithm("vineppo", continuations=2, min_gap=1)
    context = PlanContext(RENDER, 1, 20, rng=np.random.default_rng(0))
    group, _ = drive(algorithm.plan(PROBLEM, context), answers(["ab;cd;ef"]))  # type: ignore[arg-type]
    group.samples[0].score = 1.0
    for probe, score in zip(group.unused, [1.0, 0.0, 1.0, 1.0, 0.0, 0.0], strict=True):
        probe.score = score
    other = Group(
        PROBLEM, [sample([100, 101], finished=True)]
    )  # a response without cuts or probes is worth its own reward
    other.samples[0].score = 1.0
    for g in (group, other):
        algorithm.credit(g)
    assert group.samples[0].info["values"] == [0.5, 1.0, 0.0]
    advantages = algorithm.advantages(step_batch([group, other]).batch)
    expected = [[0.5] * 3 + [-1.0] * 3 + [1.0] * 3, [0.0] * 9]
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))
    assert algorithm.observe([group], None) == {"steps_per_response": 3.0, "probe_tokens": 6.0, "value_start": 0.5}  # type: ignore[arg-type]


def test_equal_neighbouring_values_are_still_two_steps() -> None:
    # V = .5, .5, 1 at the end: the first step gains 0, the second .5
    group = Group(PROBLEM, [sample([100, 101, 102, 0], finished=True)])
    group.samples[0].reward = 1.0
    group.samples[0].info |= {"cuts": [2], "values": [0.5, 0.5]}
    advantages = get_algorithm("vineppo").advantages(step_batch([group]).batch)
    assert advantages.tolist() == [[0, 0, 0.5, 0.5]]


def test_unscored_probes_gain_nothing() -> None:
    algorithm = get_algorithm("vineppo", continuations=3, min_gap=1)
    group, _ = plan()
    for s in group.samples:
        s.score = 1.0
    for probe in group.unused:
        probe.score = None if probe.info["cut"] == 3 else 0.0
    algorithm.credit(group)
    assert group.samples[0].info["values"] == [0.0, 0.0, 0.0]  # the state at 3 borrows from the one at 6


def test_micro_batches() -> None:
    check_micro_batches("vineppo")


def test_run(tmp_path: Path) -> None:
    options = ["algorithm=vineppo", "algorithm.continuations=3", 'algorithm.separators=[";"]']
    metrics = check_run(tmp_path / "run", *options)
    assert metrics[0]["steps_per_response"] > 3  # four written steps and the answer
    rows = read_rollouts(tmp_path / "run", [1]).to_pylist()
    probes = [r for r in rows if not r["chosen"]]
    assert sum(len(r["tokens"]) for r in rows) == metrics[0]["tokens_generated"]
    assert sum(len(r["tokens"]) for r in probes) == metrics[0]["probe_tokens"]
    assert all(r["score"] is not None for r in probes)
    assert 0 < np.mean([r["score"] for r in probes]) < 1
