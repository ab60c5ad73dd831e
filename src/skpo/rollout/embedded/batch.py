"""The running batch: rows, their lanes and caches, and the model, without any knowledge of plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skpo.errors import ModelError
from skpo.rollout.embedded.cache import CacheShape, Contexts, Places, rounded
from skpo.rollout.embedded.forward import ModelForward
from skpo.rollout.embedded.lanes import Lanes
from skpo.rollout.embedded.passes import DecodePass, Layout, PrefillPass
from skpo.rollout.embedded.rows import Rows
from skpo.rollout.sampling import sample
from skpo.rollout.scheduler import Job
from skpo.rollout.types import Request


@dataclass
class Admission:
    """Counts what the running rows, and the ones about to start, need of the cache when all are at their longest.

    rows, contexts: places in use. longest, longest_context: rounded tokens of the longest row and context.
    """

    slots: int
    limit: int | None
    rows: int
    longest: int
    held: set[tuple[int, ...]]
    contexts: int
    longest_context: int

    @property
    def full(self) -> bool:
        return self.rows >= self.slots

    def admit(self, request: Request, wanted: int) -> int:
        """How many of `wanted` samples of a request can start now; counts them as started."""
        count = min(wanted, self.slots - self.rows)
        held = self.held | {request.context}
        contexts = max(self.contexts, len(held))
        longest_context = max(self.longest_context, rounded(len(request.context)))
        longest = max(self.longest, rounded(request.max_tokens))
        if self.limit is not None:
            count = min(count, (self.limit - contexts * longest_context) // longest - self.rows)
        if count <= 0:
            return 0
        self.rows += count
        self.held, self.contexts, self.longest_context, self.longest = held, contexts, longest_context, longest
        return count


class Batch:
    """Rows, the two caches, and the passes over the model. Lives as long as a run.

    caches: what an earlier run left (`leave`), used where its shape fits.
    """

    def __init__(
        self,
        forward: ModelForward,
        slots: int,
        limit: int | None,
        chunk: int,
        device: torch.device,
        caches: Sequence[Places] = (),
    ) -> None:
        self.rows, self.lanes = Rows(slots, device), Lanes(slots)
        self._forward, self._limit, self._chunk, self._device = forward, limit, chunk, device
        self._contexts = Contexts()
        self._context_cache: Places | None = None
        self._row_cache: Places | None = None
        self._left = caches
        self._layout: Layout | None = None
        self._pinned: dict[int, int] = {}  # id of a job not launched in full -> its context's place

    @staticmethod
    def least_tokens(request: Request) -> int:
        """Cache tokens, as counted against the limit, of one row of a request alone."""
        return rounded(len(request.context)) + rounded(request.max_tokens)

    def leave(self) -> list[Places]:
        """The caches for the next run, where they are small and no limit is set."""
        caches = [c for c in (self._context_cache, self._row_cache) if c is not None]
        return caches if self._limit is None and all(c.small for c in caches) else []

    def plan_admission(self) -> Admission:
        """What is in use now."""
        rows, contexts = self.rows, self._contexts
        longest = rounded(int(rows.limit[: rows.count].max(initial=0)))
        return Admission(
            slots=rows.slots,
            limit=self._limit,
            rows=rows.count,
            longest=longest,
            held=set(contexts.place),
            contexts=contexts.extent,
            longest_context=rounded(contexts.longest),
        )

    def start(self, wanted: list[tuple[Job, range]]) -> int:
        """Add rows for the given samples of each job, computing contexts not held yet; returns the tokens computed."""
        fresh = [c for c in dict.fromkeys(job.request.context for job, _ in wanted) if c not in self._contexts.place]
        computed = self._prefill(fresh)
        for job, numbers in wanted:
            place = self._contexts.place[job.request.context]
            self.rows.add(job, numbers, place)
            self._contexts.hold(place, len(numbers))
            if job.launched < job.request.n and id(job) not in self._pinned:
                self._pinned[id(job)] = place
                self._contexts.hold(place)
            elif job.launched == job.request.n and id(job) in self._pinned:
                self._contexts.release(self._pinned.pop(id(job)))
        self._layout = None
        return computed

    def unpin(self) -> bool:
        """Forget contexts kept for requests not launched in full (computed again when their turn comes); False if there are none."""
        held = [self._pinned.pop(job) for job in list(self._pinned)]
        for place in held:
            self._contexts.release(place)
        return bool(held)

    def first_logits(self, low: int) -> Tensor:
        """Next-token logits [rows, V] of the rows from `low` on, which have drawn nothing yet."""
        places = self.rows.context[low : self.rows.count]
        distinct, which = np.unique(places, return_inverse=True)
        logits = torch.stack([self._contexts.logits[p] for p in distinct.tolist()])
        return logits[torch.from_numpy(which).to(self._device)]

    def draw(self, logits: Tensor, low: int) -> tuple[Tensor, Tensor]:
        """Draw and record the next token of the rows from `low` on; returns tokens and log-probabilities."""
        rows = self.rows
        high = rows.count
        tokens, logp = sample(logits, rows.seeds[low:high], rows.positions(low, high), rows.settings(low, high))
        rows.append(low, high, tokens, logp)
        return tokens, logp

    def decode(self) -> Tensor:
        """Run every row's last token through the model, those of rows that are alike so far once; returns logits [rows, V]."""
        rows, lanes = self.rows, self.lanes
        assert self._context_cache is not None
        assert self._row_cache is not None
        self._branch()
        lane, before = rows.lane[: rows.count], lanes.length[: lanes.count]
        lead = np.empty(lanes.count, dtype=np.int64)
        lead[lane] = np.arange(rows.count)  # one of a lane's rows
        if self._layout is None:
            self._layout = Layout(
                lanes.context[: lanes.count].copy(), self._contexts.lengths.copy(), self._row_cache.shape
            )
        step = DecodePass(self._layout, self._context_cache, self._row_cache, before)
        tokens = rows.last()[torch.from_numpy(lead).to(self._device)]
        logits = self._forward(step, tokens, step.positions)
        before += 1
        return logits[torch.from_numpy(lane).to(self._device)]

    def _branch(self) -> None:
        """A lane for every row, rows that are alike in one, and room for the token to come."""
        rows, lanes, cache = self.rows, self.lanes, self._row_cache
        assert cache is not None
        lane, count = rows.lane[: rows.count], lanes.count
        to = of = np.empty(0, dtype=np.int64)
        if count < rows.count or (lane < 0).any():
            lane[:], to, of = lanes.branch(lane, rows.last().cpu().numpy())
        longest, most = int(lanes.length[: lanes.count].max()), int(rows.limit[: rows.count].max())
        self._reserve(cache, lanes.count, longest + 1, rows.slots, most)
        if len(to) and (tokens := int(lanes.length[to].max())):
            cache.move(to, of, tokens)
        if lanes.count > count:
            self._layout = None

    def remove(self, numbers: np.ndarray) -> None:
        """End rows, and lanes that have none left."""
        rows, lanes = self.rows, self.lanes
        for place in rows.context[numbers].tolist():
            self._contexts.release(place)
        rows.remove(numbers)
        lane = rows.lane[: rows.count]
        used = np.unique(lane[lane >= 0])
        if len(used) < lanes.count:
            to, of, number = lanes.keep(used)
            lane[lane >= 0] = number[lane[lane >= 0]]
            if len(to) and self._row_cache is not None:
                self._row_cache.move(to, of, int(lanes.length[to].max()))
            self._layout = None

    def _prefill(self, contexts: list[tuple[int, ...]]) -> int:
        """Compute contexts, those of similar length together; returns the number of tokens."""
        contexts = sorted(contexts, key=len)
        start = 0
        while start < len(contexts):
            end, total = start + 1, len(contexts[start])
            while end < len(contexts) and total + len(contexts[end]) <= self._chunk:
                total += len(contexts[end])
                end += 1
            self._prefill_pass(contexts[start:end])
            start = end
        return sum(map(len, contexts))

    def _prefill_pass(self, contexts: list[tuple[int, ...]]) -> None:
        """One pass over some contexts: their cache and next-token logits."""
        places = np.array([self._contexts.add(c) for c in contexts], dtype=np.int64)
        prefill = PrefillPass(np.array([len(c) for c in contexts], dtype=np.int64), places, self._device)
        if self._context_cache is not None:
            self._reserve_contexts()
            prefill.store = self._context_cache
        tokens = torch.tensor([t for c in contexts for t in c], dtype=torch.int64, device=self._device)
        logits = self._forward(prefill, tokens, prefill.positions, prefill.last)
        if self._context_cache is None:
            shape = self._shape(prefill)
            fitting = [c for c in self._left if c.shape == shape] or [Places(shape), Places(shape)]
            self._context_cache, self._row_cache = fitting
            self._reserve_contexts()
            prefill.save(self._context_cache)
        for place, row in zip(places.tolist(), logits, strict=True):
            self._contexts.logits[place] = row

    def _reserve_contexts(self) -> None:
        assert self._context_cache is not None
        places, longest = self._contexts.extent, self._contexts.longest
        self._reserve(self._context_cache, places, longest, max(places, self.rows.slots), longest)

    def _reserve(self, cache: Places, places: int, tokens: int, most_places: int, most_tokens: int) -> None:
        """`Places.reserve`; under a limit nothing is taken in advance, and what is no longer used is given back."""
        if self._limit is None:
            cache.reserve(places, tokens, most_places, most_tokens)
            return
        both = [c for c in (self._row_cache, self._context_cache) if c is not None]
        need = max(places, cache.count) * max(rounded(tokens), cache.capacity)
        if need + sum(c.count * c.capacity for c in both if c is not cache) > self._limit:
            lanes = self.lanes
            for c in both:
                if c is self._context_cache:
                    c.trim(min(c.count, self._contexts.extent), self._contexts.longest)
                else:
                    c.trim(min(c.count, lanes.count), int(lanes.length[: lanes.count].max(initial=0)))
        cache.reserve(places, tokens, places, tokens)

    def _shape(self, prefill: PrefillPass) -> CacheShape:
        """The cache's shape, seen from a first pass. Raises ModelError if some layer didn't attend, or they differ."""
        layers = self._forward.config.num_hidden_layers
        kinds = {(k.shape[1], k.shape[3], v.shape[3], k.dtype) for k, v in prefill.kept.values()}
        if sorted(prefill.kept) != list(range(layers)) or len(kinds) != 1 or any(k[1] != k[2] for k in kinds):
            raise ModelError(
                f"{type(self._forward.model).__name__}: {len(prefill.kept)} of {layers} layers attend through transformers' "
                "attention interface, in the same shape; the embedded engine needs all of them. Use engine: vllm"
            )
        ((kv_heads, dim, _, dtype),) = kinds
        return CacheShape(layers, kv_heads, dim, dtype, self._device)
