"""Where one decode step of the embedded engine goes, by part, on the fast path.

Rows stand at exponential lengths (mean 56, at most 240 tokens), eight to a context of 32 to 96 tokens, caches filled with noise.
Parts are timed from outside by wrapping the functions that compute them; what a wrapper costs falls to "rest". The ceiling is
what the linear layers' products would take at the rate of one large product. The headline is the step of 64 rows over that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.common import Options, Report, Spread, by_turns, parse, spread
from benchmarks.models import build

#: part of a step -> where its functions live, and their names
PARTS = {
    "linear layers": ("layer", "_qkv", "_out", "_gate_up", "_down"),
    "output head": ("model", "_head"),
    "attention, own tokens": ("pass", "_attend_rows"),
    "attention, contexts": ("pass", "_attend_contexts"),
    "norms": ("lean", "_norm"),
    "rotary positions": ("lean", "_rotate"),
    "sampling": ("sampling", "sample"),
}


class Decode:
    """A model with `rows` rows half-way through their samples; a call is one decode step and a draw."""

    def __init__(self, shape: str, rows: int) -> None:
        import torch

        from skpo.rollout.embedded.cache import CacheShape, Places
        from skpo.rollout.embedded.forward import ModelForward
        from skpo.rollout.embedded.passes import Layout

        self.model, rng, device = build(shape), np.random.default_rng(0), torch.device("cpu")
        self.forward = ModelForward(self.model)
        self.forward.refresh()
        config, contexts = self.model.config, max(1, rows // 8)
        dim = config.hidden_size // config.num_attention_heads
        sizes = CacheShape(config.num_hidden_layers, config.num_key_value_heads, dim, torch.float32, device)
        self.contexts, self.rows = Places(sizes), Places(sizes)
        for cache, places, tokens in ((self.contexts, contexts, 96), (self.rows, rows, 240)):
            cache.reserve(places, tokens, places, tokens)
            cache.data.normal_()
        self.layout = Layout(np.arange(rows) % contexts, rng.integers(32, 97, contexts), sizes)
        self.before = np.sort(rng.exponential(56, rows).clip(1, 239).astype(np.int64))[::-1].copy()
        self.tokens = torch.zeros(rows, dtype=torch.int64)

    def __call__(self) -> dict[str, float]:
        import torch

        from skpo.rollout import sampling
        from skpo.rollout.embedded.passes import DecodePass

        with torch.no_grad():
            step = DecodePass(self.layout, self.contexts, self.rows, self.before)
            logits = self.forward(step, self.tokens, step.positions)
            sampling.sample(logits, self.tokens, self.tokens)
        return {}

    def timed(self, options: Options, spent: dict[str, float]) -> ExitStack:
        """Within it, seconds of each part are added up in `spent`."""
        from skpo.rollout import sampling
        from skpo.rollout.embedded import lean, passes

        def wrap(function: Callable[..., Any], part: str) -> Callable[..., Any]:
            def call(*args: Any, **more: Any) -> Any:
                begin = options.clock_now()
                out = function(*args, **more)
                spent[part] = spent.get(part, 0.0) + options.clock_now() - begin
                return out

            return call

        stack = ExitStack()
        fast: Any = self.forward._lean
        homes = {
            "layer": fast._layers,
            "model": [fast],
            "pass": [passes.DecodePass],
            "lean": [lean],
            "sampling": [sampling],
        }
        for part, (kind, *names) in PARTS.items():
            for home in homes[kind]:
                for name in names:
                    stack.enter_context(patch.object(home, name, wrap(vars(home)[name], part)))
        return stack

    def ceiling(self, options: Options) -> float:
        """Seconds that the products of all weights with the rows would take at the rate of a large product."""
        import torch

        a, b = torch.randn(512, 1024), torch.randn(1024, 1024)
        a @ b
        begin = options.clock_now()
        for _ in range(10):
            a @ b
        rate = 10 * a.numel() * b.shape[1] / (options.clock_now() - begin)
        weights = sum(m.weight.numel() for m in self.model.modules() if isinstance(m, torch.nn.Linear))
        return weights * len(self.before) / rate


def main() -> None:
    options = parse(__doc__, repeats=12)
    cases = [("4M", 8), ("4M", 64)] if options.quick else [("4M", 8), ("4M", 64), ("135M", 8), ("135M", 64)]
    columns: dict[str, list[Any]] = {}
    headline: Spread | None = None
    for shape, rows in cases:
        decode = Decode(shape, rows)
        plain = by_turns({"step": decode}, options, warm=2)["step"]
        spent: dict[str, float] = {}
        with decode.timed(options, spent):
            wrapped = by_turns({"step": decode}, options, warm=0)["step"]
        whole = sum(t.seconds for t in wrapped)
        least = decode.ceiling(options)
        columns[f"{shape}, {rows} rows"] = [
            spread(1e3 * t.seconds for t in plain),
            1e3 * least,
            *(f"{100 * spent.get(part, 0.0) / whole:.0f} %" for part in PARTS),
            f"{100 * (1 - sum(spent.values()) / whole):.0f} %",
        ]
        if (shape, rows) == ("4M", 64):
            headline = spread(t.seconds / least for t in plain)
    assert headline is not None
    report = Report(
        "decode_profile", "time of a decode step of 64 rows of 4 M parameters over its products' alone", headline
    )
    names = ["whole step, ms", "products alone at full rate, ms", *PARTS, "rest"]
    rows_ = [[name, *(column[i] for column in columns.values())] for i, name in enumerate(names)]
    report.table("one decode step, float32; shares of the step", ["part", *columns], rows_)
    report.finish(options)


if __name__ == "__main__":
    main()
