"""A plan may yield several requests at once: they run together, and are answered together, in order."""

from __future__ import annotations

from rollout.engine.engine_models import PROBLEM, build, check_samples, run_plans

from skpo.rollout.embedded import EmbeddedEngine
from skpo.rollout.types import Group, Plan, Request, derive_seed

CONTEXTS = [(5, 6, 7), (8, 9), (5, 6, 7, 10, 11), (12,)]


def tree(counts: list[int]) -> Plan:
    """Two samples, then `counts[i]` samples of each context at once, then one more."""
    first = yield Request((4, 5), 2, 6)
    answers = yield [Request(c, n, 7 + i) for i, (c, n) in enumerate(zip(CONTEXTS, counts, strict=True))]
    assert [len(a) for a in answers] == counts
    last = yield Request((4,), 1, 3)
    return Group(PROBLEM, [*first, *(s for a in answers for s in a), *last], info={"answers": answers})


def one_by_one(counts: list[int]) -> Plan:
    """The same samples, asked for in turn."""
    samples = yield Request((4, 5), 2, 6)
    for i, (context, n) in enumerate(zip(CONTEXTS, counts, strict=True)):
        samples += yield Request(context, n, 7 + i)
    samples += yield Request((4,), 1, 3)
    return Group(PROBLEM, samples)


def test_answers_come_together_with_seeds_counted_over_all_requests() -> None:
    model = build("llama")
    (group,) = run_plans(EmbeddedEngine(model, eos_ids=[3], slots=16), [tree([3, 0, 1, 2])])
    assert [s.context for s in group.samples] == [
        (4, 5), (4, 5), *[CONTEXTS[0]] * 3, CONTEXTS[2], *[CONTEXTS[3]] * 2, (4,)
    ]  # fmt: skip
    assert [s.seed for s in group.samples] == [derive_seed(0, i) for i in range(9)]
    assert check_samples(model, group.samples) < 1e-5


def test_the_same_samples_as_asked_for_one_by_one() -> None:
    for slots in (2, 5, 64):  # fewer rows than the requests of one turn: they wait
        engine = EmbeddedEngine(build("llama"), eos_ids=[3], slots=slots)
        counts = [[3, 0, 1, 2], [1, 4, 2, 0]]
        at_once = run_plans(engine, [tree(c) for c in counts])
        in_turn = run_plans(engine, [one_by_one(c) for c in counts])
        for a, b in zip(at_once, in_turn, strict=True):
            assert [s.tokens.tolist() for s in a.samples] == [s.tokens.tolist() for s in b.samples]


def test_they_share_the_batch() -> None:
    engine = EmbeddedEngine(build("llama"), eos_ids=[], slots=16)

    def plan() -> Plan:
        yield [Request(c, 2, 10) for c in CONTEXTS]
        return Group(PROBLEM, [])

    run_plans(engine, [plan()])
    assert engine.take_stats().steps == 9  # ten tokens, the first of them from the prompt's pass


def test_requests_that_ask_for_nothing() -> None:
    def plan() -> Plan:
        assert (yield []) == []
        assert (yield [Request((5,), 0, 4)]) == [[]]
        samples = yield Request((5,), 1, 4)
        return Group(PROBLEM, samples)

    (group,) = run_plans(EmbeddedEngine(build("llama"), eos_ids=[3], slots=2), [plan()])
    assert [s.seed for s in group.samples] == [derive_seed(0, 0)]


def test_first_turn_of_several_requests_in_one_slot() -> None:
    def plan() -> Plan:
        a, b = yield [Request((5, 6), 2, 4), Request((7,), 2, 3)]
        return Group(PROBLEM, [*a, *b])

    groups = run_plans(EmbeddedEngine(build("llama"), eos_ids=[3], slots=1), [plan(), plan()])
    for seed, group in enumerate(groups):
        assert [s.context for s in group.samples] == [(5, 6), (5, 6), (7,), (7,)]
        assert [s.seed for s in group.samples] == [derive_seed(seed, i) for i in range(4)]
