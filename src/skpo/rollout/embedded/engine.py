"""`EmbeddedEngine`: runs plans on a model in this process, all of them in one continuous batch."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skpo.errors import ModelError, SkpoError
from skpo.rollout.embedded.batch import Batch
from skpo.rollout.embedded.cache import Places
from skpo.rollout.embedded.forward import ModelForward
from skpo.rollout.scheduler import Job, Scheduler
from skpo.rollout.types import EngineStats, Group, PlanRun, Request, Sample
from skpo.rollout.weights import load_weights


class EmbeddedEngine:
    """Continuous batching on any Hugging Face causal language model, on the CPU or one GPU.

    model: shared with the trainer or the engine's own. It is put in evaluation mode only while the engine computes;
        training modes, attention implementation and `use_cache` are as found whenever a group is handed out.
    eos_ids: token ids that end a sample (and are part of it).
    slots: most rows that decode at once.
    max_cache_tokens: most tokens of key-value cache, counted as allocated for the longest of the running rows and
        contexts; None: no limit but the slots. A request that doesn't fit waits.
    device: where the model is, by default the device of its first parameter.
    prefill_chunk: most prompt tokens computed in one pass (a longer prompt is a pass of its own).
    lean: compute recognised models (Llama, Qwen2, Qwen3, unwrapped) without their modules, which is faster; on a CPU this
        holds a second copy of the weights, packed, while plans run.

    Caches live as long as a run; on a CPU those of at most 256 MiB are kept for the next.

    Rows that have drawn the same tokens behind the same context are computed once until they part: a group's samples begin
    alike, for longer the surer the model is; greedy ones stay alike.

    Samples depend on the weights, the plans and their seeds. What shares a batch with a row changes its logits by
    rounding only. Greedy tokens (temperature 0) have log-probability 0: the distribution sampled holds one token.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        eos_ids: Collection[int],
        slots: int = 256,
        max_cache_tokens: int | None = None,
        device: torch.device | str | None = None,
        prefill_chunk: int = 8192,
        lean: bool = True,
    ) -> None:
        if slots < 1 or prefill_chunk < 1:
            raise SkpoError(f"slots and prefill_chunk must be at least 1, not {slots} and {prefill_chunk}")
        self.version = 0
        self.steps = 0  #: decode steps since the engine was made, never reset: a clock that plans may read
        self._forward = ModelForward(model, lean=lean)
        self._device = torch.device(device) if device is not None else next(model.parameters()).device
        self._eos = torch.tensor(sorted(set(eos_ids)), dtype=torch.int64, device=self._device)
        self._slots, self._limit, self._chunk = slots, max_cache_tokens, prefill_chunk
        self._batch: Batch | None = None
        self._caches: list[Places] = []
        self._stats = EngineStats()

    def run(self, runs: Iterable[PlanRun | None]) -> Iterator[tuple[int, Group]]:
        """See `Engine.run`. Raises what a plan raises, SkpoError for a request that can't be run (more positions than
        the model has, more tokens than the cache may hold) and ModelError for non-finite logits."""
        if self._batch is not None:
            raise SkpoError("the engine is already running plans; finish or close that run first")
        with torch.no_grad():
            self._forward.refresh()
        scheduler = Scheduler(runs, self._check)
        caches, self._caches = self._caches, []
        batch = Batch(self._forward, self._slots, self._limit, self._chunk, self._device, caches)
        self._batch = batch
        try:
            while True:
                began = time.perf_counter()
                try:
                    with self._forward.serving(), torch.no_grad():
                        alive = self._turn(scheduler, batch)
                finally:
                    self._stats.seconds += time.perf_counter() - began
                yield from scheduler.pop_finished()
                if not alive:
                    self._caches = batch.leave()
                    return
        finally:
            self._batch = None
            self._forward.forget()
            scheduler.close()

    def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """See `Engine.update_weights`. Names are those of `state_dict()`; of tied weights one name is enough, and frozen ones
        (under LoRA: all but the adapters) may stay as they are.

        Raises SkpoError while plans are running, ModelError for unknown or missing names or other shapes.
        """
        if self._batch is not None:
            raise SkpoError("weights can't change while plans are running; finish or close the run first")
        if weights is not None:
            load_weights(self._forward.model, weights)
        self.version = version

    def take_stats(self) -> EngineStats:
        """See `Engine.take_stats`."""
        taken, self._stats = self._stats, EngineStats()
        return replace(taken)

    def close(self) -> None:
        """Frees the caches that the last run left."""
        self._caches = []

    def _turn(self, scheduler: Scheduler, batch: Batch) -> bool:
        """Steps until a plan has finished or nothing is left to do; False in the latter case."""
        while True:
            self._admit(scheduler, batch)
            if scheduler.finished:
                return True
            if batch.rows.count == 0:
                return False
            self._decode(scheduler, batch)

    def _admit(self, scheduler: Scheduler, batch: Batch) -> None:
        """Start rows until no row is free, none fits or nothing waits; draws their first tokens."""
        while batch.rows.count < self._slots:
            low = batch.rows.count
            wanted: list[tuple[Job, range]] = []
            planned = batch.plan_admission()
            while not planned.full and (job := scheduler.next_job()) is not None:
                count = planned.admit(job.request, job.request.n - job.launched)
                if count == 0:
                    break
                wanted.append((job, scheduler.launch(job, count)))
            if not wanted:
                if batch.rows.count == 0 and scheduler.next_job() is not None and batch.unpin():
                    continue  # what is kept for a request that waits was in the way of the one before it
                return
            self._stats.prefill_tokens += batch.start(wanted)
            logits = batch.first_logits(low)
            self._draw(scheduler, batch, logits, low)

    def _decode(self, scheduler: Scheduler, batch: Batch) -> None:
        """One token for every row."""
        logits = batch.decode()
        self.steps += 1
        self._stats.steps += 1
        self._stats.rows += batch.rows.count
        self._stats.computed += batch.lanes.count
        self._draw(scheduler, batch, logits, 0)

    def _draw(self, scheduler: Scheduler, batch: Batch, logits: Tensor, low: int) -> None:
        """Draw a token for the rows from `low` on, and hand over the samples that are complete."""
        rows = batch.rows
        tokens, logp = batch.draw(logits, low)
        stopped = (tokens[:, None] == self._eos).any(1)
        flags = (stopped.to(torch.int8) + 2 * (~logp.isfinite()).to(torch.int8)).cpu().numpy()
        if (flags & 2).any():
            raise ModelError(
                "the model's logits are not finite (NaN or infinity): its weights or its precision are broken"
            )
        self._stats.generated_tokens += len(flags)
        done = np.flatnonzero((flags & 1).astype(bool) | (rows.made[low : rows.count] >= rows.limit[low : rows.count]))
        if len(done) == 0:
            return
        ended = (flags & 1)[done].astype(bool).tolist()
        numbers = done + low
        jobs = [rows.job[i] for i in numbers.tolist()]
        pieces = rows.take(numbers)
        batch.remove(numbers)
        for (job, i), (ids, lp), finished in zip(jobs, pieces, ended, strict=True):
            context = job.request.context
            sample = Sample(context, ids, lp, finished, seed=job.sample_seed(i), version=self.version)
            scheduler.deliver(job, i, sample)

    def _check(self, request: Request) -> None:
        """Raise SkpoError for a request that can never run."""
        if not request.context:
            raise SkpoError(
                "a request has an empty context; it needs at least one token (a beginning-of-sequence id, say)"
            )
        if request.max_tokens < 1:
            raise SkpoError(f"a request has max_tokens {request.max_tokens}; it must be at least 1")
        length, most = len(request.context) + request.max_tokens, self._forward.max_positions
        if most is not None and length > most:
            raise SkpoError(
                f"a request needs {length} positions ({len(request.context)} context + {request.max_tokens} new tokens) "
                f"but the model has {most}; lower max_completion_tokens or max_prompt_tokens"
            )
        if self._limit is not None and (need := Batch.least_tokens(request)) > self._limit:
            raise SkpoError(
                f"a request needs {need} tokens of cache ({len(request.context)} context + {request.max_tokens} new tokens, "
                f"rounded up) but max_cache_tokens is {self._limit}"
            )
