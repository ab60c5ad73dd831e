"""`VLLMEngine`: plans on stock vLLM, driven through its request loop."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from skpo.config import VLLMConfig
from skpo.errors import ModelError, SkpoError
from skpo.rollout import probe
from skpo.rollout.scheduler import Job, Scheduler
from skpo.rollout.types import EngineStats, Group, PlanRun, Request, Sample
from skpo.rollout.vllm.adapters import Adapters
from skpo.rollout.vllm.start import engine_arguments, reason, require_vllm, start
from skpo.rollout.vllm.transfer import send, shared_folder
from skpo.rollout.weights import load_weights

Flight = dict[str, tuple[Job, int]]  #: vLLM's request id -> the sample that it makes


class VLLMEngine:
    """Runs plans on vLLM, in this process or in its own. See `Engine`.

    model: the trainer's (a Hugging Face causal LM, or PEFT's wrapper of one); `update_weights` sends what it holds then.
    eos_ids: token ids that end a sample (and are part of it).
    slots: most samples under way at once (vLLM's `max_num_seqs`). max_cache_tokens: most tokens of key-value cache.
    device: where the trainer is; for a CPU, settings that suit vLLM on CPUs. threads: CPU threads of vLLM's own process.

    Each sample is a request of its own with its own seed; requests of a plan's later turns enter vLLM's running batch as soon as
    the plan asks. vLLM starts from random weights, so that the first transfer is proven like every later one.

    Raises ConfigError without vLLM, ModelError for a model that vLLM refuses.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_ids: Collection[int],
        slots: int = 256,
        max_cache_tokens: int | None = None,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        settings: VLLMConfig | None = None,
    ) -> None:
        require_vllm()
        self.version = 0
        self.steps = 0  #: steps of vLLM's scheduler since the engine was made
        self._model, self._slots, self._eos = model, slots, sorted(set(eos_ids))
        self._settings = settings or VLLMConfig()
        self._own_process = self._settings.mode == "process"
        self._ids = itertools.count()
        self._stats = EngineStats()
        self._arrival: dict[str, float] = {}  # metrics of the last change of weights
        self._flight: Flight | None = None  # while plans run
        self._before: np.ndarray | None = None  # the trainer's probe at the version that vLLM holds
        self._adapters = Adapters.of(model) if self._settings.lora == "adapters" else None
        self._engine: Any = None
        try:
            self._start(torch.device(device), max_cache_tokens, threads)
        except BaseException:
            self.close()
            raise

    def _start(self, device: torch.device, max_cache_tokens: int | None, threads: int | None) -> None:
        base = self._model.get_base_model() if hasattr(self._model, "peft_config") else self._model
        own = next(base.parameters()).dtype
        dtype = own if self._settings.dtype == "auto" else getattr(torch, self._settings.dtype)
        usual = probe.TOLERANCE if own == dtype == torch.float32 else probe.LOW_PRECISION_TOLERANCE
        self._tolerance = self._settings.probe_tolerance or usual
        size = sum(p.nbytes for p in base.parameters()) if self._adapters else 0
        config = copy.deepcopy(base.config)
        config.architectures = [type(base).__name__]
        lora = self._adapters.arguments() if self._adapters else {}
        with shared_folder(size) as folder:  # vLLM has read it when it has started
            config.save_pretrained(folder)
            if self._adapters is not None:
                self._adapters.write_base(folder)
            arguments = engine_arguments(
                folder, self._settings, dtype=dtype, slots=self._slots, max_cache_tokens=max_cache_tokens, device=device, lora=lora
            )  # fmt: skip
            self._engine = start(arguments, own_process=self._own_process, threads=threads)
        self._positions = int(self._engine.model_config.max_model_len)
        self._rows = probe.probe_rows(base.get_input_embeddings().weight.shape[0], self._positions - 1)

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self, runs: Iterable[PlanRun | None]) -> Iterator[tuple[int, Group]]:
        """See `Engine.run`. Raises what a plan raises, SkpoError for a request that can't be run and ModelError for non-finite
        log-probabilities."""
        if self._flight is not None:
            raise SkpoError("the engine is already running plans; finish or close that run first")
        if self._before is None:
            self.update_weights(None, self.version)
        scheduler = Scheduler(runs, self._check)
        flight = self._flight = {}
        try:
            while True:
                began = time.perf_counter()
                try:
                    self._advance(scheduler, flight)
                finally:
                    self._stats.seconds += time.perf_counter() - began
                if not (scheduler.finished or flight):
                    return
                yield from scheduler.pop_finished()
        finally:
            self._flight = None
            if flight and self._engine is not None:
                self._engine.abort_request(list(flight))
            scheduler.close()

    def _advance(self, scheduler: Scheduler, flight: Flight) -> None:
        """Steps until a plan has finished or nothing is left to do."""
        while True:
            self._admit(scheduler, flight)
            if scheduler.finished or not flight:
                return
            outputs = self._step()
            self.steps += 1
            self._stats.steps += 1
            for output in outputs:
                if (found := flight.pop(output.request_id, None)) is not None:
                    scheduler.deliver(*found, self._sample(*found, output))

    def _step(self) -> list[Any]:
        """One step of vLLM; the requests that it finished. Raises ModelError where vLLM fails, or its process died."""
        try:
            return [output for output in self._engine.step() if output.finished]
        except Exception as error:
            raise ModelError(f"vLLM can't run this model, or has died: {reason(error)}") from error

    def _admit(self, scheduler: Scheduler, flight: Flight) -> None:
        """Hand samples to vLLM until as many are under way as it runs at once, or nothing waits."""
        while len(flight) < self._slots and (job := scheduler.next_job()) is not None:
            for i in scheduler.launch(job, min(self._slots - len(flight), job.request.n - job.launched)):
                name = str(next(self._ids))
                self._add(name, job.request.context, self._parameters(job, i))
                flight[name] = job, i

    def _add(self, name: str, ids: Sequence[int], parameters: Any) -> None:
        lora = self._adapters.request if self._adapters else None
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, parameters, lora_request=lora)

    def _parameters(self, job: Job, i: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = job.request.sampling
        return SamplingParams(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, max_tokens=job.request.max_tokens,
            seed=job.sample_seed(i), stop_token_ids=self._eos, ignore_eos=True, logprobs=0, flat_logprobs=True, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip

    def _sample(self, job: Job, i: int, output: Any) -> Sample:
        """What vLLM made of a sample. Greedy tokens have log-probability 0: the distribution sampled holds one token."""
        made = output.outputs[0]
        if made.finish_reason not in ("stop", "length"):
            raise ModelError(f"vLLM ended a request with {made.finish_reason!r} in place of an answer")
        tokens = np.asarray(made.token_ids, dtype=np.int64)
        logp = np.asarray(made.logprobs.logprobs, dtype=np.float32)
        if logp.shape != tokens.shape or not np.isfinite(logp).all():
            raise ModelError("vLLM's log-probabilities are not finite: the model's weights or its precision are broken")
        if job.request.sampling.temperature == 0:
            logp = np.zeros_like(logp)
        self._stats.generated_tokens += len(tokens)
        self._stats.rows += len(tokens) - 1
        self._stats.computed += len(tokens) - 1
        self._stats.prefill_tokens += len(job.request.context) - (output.num_cached_tokens or 0)
        finished = made.finish_reason == "stop"
        return Sample(job.request.context, tokens, logp, finished, seed=job.sample_seed(i), version=self.version)

    def _check(self, request: Request) -> None:
        """Raise SkpoError for a request that can never run."""
        if not request.context:
            raise SkpoError(
                "a request has an empty context; it needs at least one token (a beginning-of-sequence id, say)"
            )
        if request.max_tokens < 1:
            raise SkpoError(f"a request has max_tokens {request.max_tokens}; it must be at least 1")
        if (length := len(request.context) + request.max_tokens) > self._positions:
            raise SkpoError(
                f"a request needs {length} positions ({len(request.context)} context + {request.max_tokens} new tokens) but vLLM "
                f"has {self._positions}; lower max_completion_tokens or max_prompt_tokens, or raise rollout.vllm.max_model_len"
            )

    # ---- weights ---------------------------------------------------------------------------------------------------

    def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """See `Engine.update_weights`; None: those of the trainer's model, as they are now.

        Given weights are first loaded into `model`. Then trainer and vLLM score the same rows: raises ModelError, with the likely
        cause, where they differ. Raises SkpoError while plans are running.
        """
        if self._flight is not None:
            raise SkpoError("weights can't change while plans are running; finish or close the run first")
        begin = time.perf_counter()
        if weights is not None:
            load_weights(self._model, weights)
        if self._adapters is not None:
            self._adapters.send(self._engine)
        else:
            send(self._engine, self._model, own_process=self._own_process)
        self._engine.reset_prefix_cache()
        self._verify(version)
        self.version = version
        self._arrival["seconds_weights"] = time.perf_counter() - begin

    def _verify(self, version: int) -> None:
        expected = probe.trainer_scores(self._model, self._rows)
        verdict = probe.Verdict(expected, self.scores(self._rows), self._before, self._tolerance)
        self._arrival["probe_deviation"] = verdict.deviation
        if not verdict.good:
            raise ModelError(self._explain(verdict, version))
        self._before = expected

    def _explain(self, verdict: probe.Verdict, version: int) -> str:
        """The likely cause of a mismatch, as an error message."""
        what = (
            f"weight version {version}: vLLM's log-probabilities differ from the trainer's by up to {verdict.deviation:.3g} nats on "
            f"the probe's rows (allowed: {verdict.tolerance:g})."
        )
        if verdict.unmoved:
            return f"{what} They are still those of the version before: the new weights did not arrive."
        self._engine.collective_rpc("skpo_refresh_head")
        if probe.gap(self.scores(self._rows), verdict.expected) <= verdict.tolerance:
            return f"{what} The output head was stale: it still held older weights, and is right once packed again."
        if verdict.deviation < 10 * verdict.tolerance:
            return f"{what} If that is what its precision gives here, raise rollout.vllm.probe_tolerance."
        return (
            f"{what} Likely vLLM names weights of {type(self._model).__name__} in another way, or computes it differently; if so, "
            "use rollout.engine=embedded."
        )

    def scores(self, rows: probe.Rows) -> np.ndarray:
        """vLLM's log-probabilities of a probe's rows, as `probe.trainer_scores` gives them: those of its sampler, as in rollouts.

        Not while plans run.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        names = [f"probe {next(self._ids)}" for _ in rows.contexts]
        for name, context, tokens in zip(names, rows.contexts, rows.tokens, strict=True):
            parameters = SamplingParams(
                temperature=1.0, seed=0, max_tokens=1, logprob_token_ids=tokens, flat_logprobs=True, detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            self._add(name, context, parameters)
        found: dict[str, dict[int, float]] = {}
        while len(found) < len(names):
            for output in self._step():
                scores = output.outputs[0].logprobs
                found[output.request_id] = dict(zip(scores.token_ids, scores.logprobs, strict=True))
        wanted = zip(names, rows.tokens, strict=True)
        return np.asarray([[found[name][token] for token in tokens] for name, tokens in wanted], dtype=np.float32)

    # ---- the rest --------------------------------------------------------------------------------------------------

    def take_stats(self) -> EngineStats:
        """See `Engine.take_stats`; with `probe_deviation` (nats) and `seconds_weights` of the last change of weights."""
        taken, self._stats = self._stats, EngineStats()
        return replace(taken, more=dict(self._arrival))

    def close(self) -> None:
        """End vLLM and its processes. Closing twice does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.engine_core.shutdown()
