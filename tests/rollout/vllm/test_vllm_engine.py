"""Plans on vLLM: what is sampled, in which order, with which log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from rollout.engine.engine_models import PROBLEM, check_samples, one_stage, run_plans, two_stage
from rollout.vllm.vllm_models import EOS, build, engine_on

from skpo.errors import SkpoError
from skpo.rollout.types import Group, Plan, PlanRun, Request, Sampling, derive_seed
from skpo.rollout.vllm import VLLMEngine

SAMPLINGS = {
    "plain": Sampling(),
    "warm": Sampling(temperature=0.7),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "top-k": Sampling(top_k=7),
    "both": Sampling(temperature=0.9, top_k=20, top_p=0.6),
    "greedy": Sampling(temperature=0.0),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


@pytest.fixture(scope="module")
def engine(model: Any) -> Iterator[VLLMEngine]:
    engine = engine_on(model)
    yield engine
    engine.close()


def test_log_probabilities_of_the_distribution_really_sampled(engine: VLLMEngine, model: Any) -> None:
    """All settings in one batch, against a plain forward for each sample."""
    groups = run_plans(engine, [two_stage((5, 6, 7 + i), 3, 24, s) for i, s in enumerate(SAMPLINGS.values())])
    for group, sampling in zip(groups, SAMPLINGS.values(), strict=True):
        assert check_samples(model, [*group.samples, *group.unused], sampling) < 1e-4


def test_greedy_tokens_have_log_probability_zero(engine: VLLMEngine, model: Any) -> None:
    (group,) = run_plans(engine, [two_stage((5, 6), 2, 12, SAMPLINGS["greedy"])])
    for s in group.samples:
        best = model(torch.tensor([[*s.context, *s.tokens.tolist()]])).logits[0].argmax(-1)
        assert best[len(s.context) - 1 : -1].tolist() == s.tokens.tolist()
        assert (s.logp == 0).all()


def test_end_of_sequence_is_part_of_a_sample(engine: VLLMEngine) -> None:
    groups = run_plans(engine, [one_stage((5, 6, 7, 8 + i), 8, 60) for i in range(4)])
    samples = [s for g in groups for s in g.samples]
    assert {s.finished for s in samples} == {True, False}
    for s in samples:
        assert EOS not in s.tokens[:-1].tolist()
        assert s.finished == (s.tokens[-1] == EOS)
        assert s.finished or len(s) == 60
        assert len(s.logp) == len(s)
        assert (s.tokens.dtype, s.logp.dtype) == (np.int64, np.float32)


def test_a_sample_depends_on_its_seed_alone(engine: VLLMEngine) -> None:
    """Not on what else is under way, nor on the order of plans. Samples are numbered over all requests of a plan."""
    plans = [two_stage((5, 6, 7 + i), 4, 20) for i in range(6)]
    together = run_plans(engine, plans)
    alone = dict(engine.run([PlanRun(two_stage((5, 6, 9), 4, 20), 2)]))[0]
    for a, b in zip([*together[2].unused, *together[2].samples], [*alone.unused, *alone.samples], strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
    seeds = [s.seed for s in [*alone.unused, *alone.samples]]
    assert seeds == [derive_seed(2, i) for i in range(8)]
    assert len({tuple(s.tokens.tolist()) for s in alone.unused}) > 1


def test_the_second_stage_waits_for_its_own_samples_only(engine: VLLMEngine) -> None:
    """A plan whose first stage is one token long is through both stages while another's first stage still runs."""
    ended: list[tuple[str, int]] = []

    def plan(name: str, first: int, second: int) -> Plan:
        yield Request((5, 6, 7), 2, first)
        ended.append((name, engine.steps))
        samples = yield Request((5, 6), 2, second)
        ended.append((name, engine.steps))
        return Group(PROBLEM, samples)

    before = engine.steps
    order = [i for i, _ in engine.run([PlanRun(plan("long", 60, 1), 1), PlanRun(plan("short", 1, 2), 0)])]
    assert order == [1, 0]
    assert [name for name, _ in ended] == ["short", "short", "long", "long"]
    assert ended[1][1] - before <= 4  # one step for the first stage and two for the second


def test_several_requests_at_once_and_more_samples_than_slots(engine: VLLMEngine, model: Any) -> None:
    def plan() -> Plan:
        answers = yield [Request((5, 6), 20, 6), Request((7,), 0, 5), Request((8, 9, 10), 3, 4)]
        assert [len(a) for a in answers] == [20, 0, 3]
        return Group(PROBLEM, [s for a in answers for s in a])

    engine.take_stats()
    (group,) = run_plans(engine, [plan()])
    stats = engine.take_stats()
    assert check_samples(model, group.samples) < 1e-4
    assert stats.generated_tokens == sum(len(s) for s in group.samples)
    assert stats.rows == stats.generated_tokens - 23  # each sample's first token comes from its prefill
    assert stats.prefill_tokens == 20 * 2 + 3 * 3  # contexts shorter than a block of 32 are not shared
    assert engine.take_stats().steps == 0


def test_long_contexts_are_computed_once(engine: VLLMEngine) -> None:
    context = tuple(10 + i % 80 for i in range(65))
    run_plans(engine, [one_stage(context, 1, 2)])
    engine.take_stats()
    run_plans(engine, [one_stage(context, 4, 2)])
    assert engine.take_stats().prefill_tokens == 4  # 64 of 65 tokens are two blocks of 32


def test_what_can_not_run_is_refused_and_the_engine_goes_on(engine: VLLMEngine) -> None:
    for request, words in (
        (Request((5,) * 100, 1, 60), "160 positions"),
        (Request((), 1, 4), "empty context"),
        (Request((5,), 1, 0), "max_tokens 0"),
    ):

        def plan(request: Request = request) -> Plan:
            yield Request((5, 6), 2, 4)
            yield request
            raise AssertionError

        with pytest.raises(SkpoError, match=words):
            list(engine.run([PlanRun(plan(), 0), PlanRun(one_stage((5,), 2, 50), 1)]))
    (group,) = run_plans(engine, [one_stage((5, 6), 2, 4)])
    assert len(group.samples) == 2


def test_a_run_that_is_left_early_leaves_nothing_behind(engine: VLLMEngine) -> None:
    run = engine.run([PlanRun(one_stage((5, 6, 7), 4, n), n) for n in (2, 60)])
    assert next(run)[0] == 0
    with pytest.raises(SkpoError, match="already running"):
        next(engine.run([]))
    with pytest.raises(SkpoError, match="while plans are running"):
        engine.update_weights(None, 1)
    run.close()  # type: ignore[attr-defined]
    assert engine._engine.get_num_unfinished_requests() == 0
    assert [i for i, _ in engine.run([PlanRun(one_stage((5, 6, 7), 4, 2), 0)])] == [0]


def test_the_trainers_state_is_untouched() -> None:
    """Random states and the number of threads, although a worker in this process seeds and sets them."""
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(3).tolist(), np.random.rand()
    torch.manual_seed(5)
    np.random.seed(5)
    threads = torch.get_num_threads()
    engine_on(build_unseeded()).close()
    assert (torch.rand(3).tolist(), np.random.rand()) == expected
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)


def test_more_prompts_than_fit_into_one_step(model: Any) -> None:
    """None is cut in two: vLLM would have to turn back the random state of its sample, which it can't on a CPU."""
    engine = engine_on(model, args={"max_num_batched_tokens": 160})
    plans = [one_stage((*range(4, 98), 5 + i), 1, 8) for i in range(6)]
    alone = [dict(engine.run([PlanRun(one_stage((*range(4, 98), 5 + i), 1, 8), i)]))[0] for i in range(6)]
    together = run_plans(engine, plans)
    engine.close()
    assert check_samples(model, [s for g in together for s in g.samples]) < 1e-4
    for group, twin in zip(together, alone, strict=True):
        assert group.samples[0].tokens.tolist() == twin.samples[0].tokens.tolist()


def build_unseeded() -> Any:
    with torch.random.fork_rng():
        return build("llama")
