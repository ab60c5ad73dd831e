"""Makes docs/scale.md: what a model needs in memory and on the network, by arithmetic, so that no number in it is typed by hand.

    python -m benchmarks.layout        rebuild docs/scale.md from docs/results/scale.md.jinja

Nothing here was measured. Sizes are decimal (GB = 10^9 bytes), as on the data sheets of GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
GB = 1e9
FP32, BF16 = 4, 2  #: bytes of a number
ADAMW = 2 * FP32  #: bytes per weight of AdamW's two moments
LOGIT_BUFFERS = 2  #: of `optimizer.logit_chunk` numbers each


@dataclass(frozen=True)
class Model:
    """Sizes of a Llama or Qwen2, as in its config.json. bias: on queries, keys and values. tied: one matrix for input and output."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    head_dim: int = 128
    tied: bool = False
    bias: bool = False

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(in, out) of the linear layers of one decoder layer: query, key, value, output, gate, up, down."""
        h, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [(h, q), (h, kv), (h, kv), (q, h), (h, self.inner), (h, self.inner), (self.inner, h)]

    @property
    def layer(self) -> int:
        """Weights of one decoder layer."""
        biases = (self.heads + 2 * self.kv_heads) * self.head_dim if self.bias else 0
        return sum(a * b for a, b in self.shapes) + 2 * self.hidden + biases

    @property
    def ends(self) -> int:
        """Weights outside the decoder layers: embeddings, output head, last norm."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def weights(self) -> int:
        return self.layers * self.layer + self.ends

    def adapters(self, rank: int) -> int:
        """Weights of LoRA adapters of this rank on every linear layer of the decoder."""
        return self.layers * sum(rank * (a + b) for a, b in self.shapes)

    def cache_token(self, size: int) -> int:
        """Bytes of key-value cache of one token, in numbers of `size` bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * size

    def activations(self, tokens: int) -> int:
        """Bytes with gradient checkpointing and bf16: every layer's input for `tokens` tokens, and all inside one layer.

        Inside: two norms in float32 and their results, queries, keys and values, attention's output, gate, up, their product.
        """
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        inside = 2 * self.hidden * (FP32 + BF16) + (attention + self.hidden + 3 * self.inner) * BF16
        return tokens * (self.layers * self.hidden * BF16 + inside)


MODELS = {
    "3B": Model("Llama-3.2-3B", 3072, 28, 24, 8, 8192, 128256, tied=True),
    "7B": Model("Qwen2.5-7B", 3584, 28, 28, 4, 18944, 152064, bias=True),
    "70B": Model("Llama-3.1-70B", 8192, 80, 64, 8, 28672, 128256),
}


@dataclass(frozen=True)
class Layout:
    """How a model is trained. gpus: training processes; sharded: FSDP2; rank: of LoRA adapters, 0 for all weights.

    Settings: `precision: bf16`, `gradient_checkpointing: true`; stored: bytes of a weight (`model.dtype`); micro: `micro_batch_tokens`;
    logits: `logit_chunk`. whole: each process keeps the model once more, as FSDP2 does now for sampling, checkpoints and workers.
    """

    model: Model
    gpus: int = 1
    sharded: bool = False
    rank: int = 0
    stored: int = FP32
    micro: int = 16384
    logits: int = 1 << 24
    whole: bool = True

    @property
    def trained(self) -> int:
        """Weights that the optimiser changes."""
        return self.model.adapters(self.rank) if self.rank else self.model.weights

    def parts(self) -> dict[str, float]:
        """Bytes on each training GPU in the update, by what they are for."""
        share = self.gpus if self.sharded else 1
        m, adapters = self.model, self.trained if self.rank else 0
        gathered = m.weights if not self.sharded else 2 * m.layer + m.ends
        found = {
            "weights": (m.weights * self.stored + adapters * FP32) / share,
            "gradients": self.trained * FP32 / share,
            "AdamW": self.trained * ADAMW / share,
            "bf16 copies": gathered * BF16 if self.sharded or self.stored != BF16 else 0,
            "activations": m.activations(self.micro),
            "logits": LOGIT_BUFFERS * self.logits * FP32,
        }
        if not self.sharded and self.gpus > 1:
            found["DDP buckets"] = self.trained * FP32
        if self.sharded:
            found["unsharded gradients"] = (m.layer + m.ends) * (BF16 + FP32) if not self.rank else 0
            found["whole copy"] = m.weights * self.stored if self.whole else 0
        return found

    def update(self) -> float:
        """Bytes on each training GPU while it updates."""
        return sum(self.parts().values())

    def resting(self) -> float:
        """Bytes on each training GPU while it samples: weights, AdamW, the whole copy."""
        parts = self.parts()
        return parts["weights"] + parts["AdamW"] + parts.get("whole copy", 0.0)

    def rows(self, memory: float, tokens: int, prompt: int, group: int = 8, reserve: float = 4 * GB) -> int:
        """Rows that an embedded engine on a training GPU can decode at once, at full length; their contexts are shared by `group`."""
        free = memory - reserve - self.resting()
        return max(0, int(free / (self.model.cache_token(self.stored) * (tokens + prompt / group))))

    def per_pass(self) -> dict[str, float]:
        """Bytes that a GPU takes in for one micro-batch under FSDP2 (all-gather forward and backward, reduce-scatter), or for a whole
        optimiser step under DDP (ring all-reduce)."""
        away = (self.gpus - 1) / self.gpus
        if not self.sharded:
            return {"all-reduce": 2 * away * self.trained * FP32}
        gather = away * self.model.weights * BF16
        return {"all-gather, twice": 2 * gather, "reduce-scatter": away * self.trained * FP32}

    def sent(self) -> int:
        """Bytes of one version on their way to the workers: trained weights as they are stored, adapters in float32."""
        return self.trained * (FP32 if self.rank else self.stored)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers with three significant digits."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)])


def cell(value: Any) -> str:
    """A table's cell."""
    from benchmarks.common import number

    return "-" if value is None else number(value)


def gb(size: float) -> float:
    return size / GB


def sizes() -> str:
    """Weights, cache and LoRA of the models."""
    rows = [
        [m.name, m.weights / 1e9, gb(m.weights * FP32), gb(m.weights * BF16), m.cache_token(FP32) / 1e3,
         m.cache_token(BF16) / 1e3, gb(m.cache_token(BF16) * (3072 + 1024 / 8)), m.adapters(16) / 1e6, gb(m.adapters(16) * FP32)]
        for m in MODELS.values()
    ]  # fmt: skip
    heads = ["model", "weights, 10^9", "float32, GB", "bf16, GB", "cache of a token, float32, kB", "bf16, kB",
             "cache of a row of 3,072 tokens, bf16, GB", "LoRA r=16, 10^6", "LoRA, GB"]  # fmt: skip
    return markdown(heads, rows)


#: name -> layout, in the order of the page
LAYOUTS = {
    "3B, 1 GPU": Layout(MODELS["3B"]),
    "3B, 1 GPU, LoRA": Layout(MODELS["3B"], rank=16, stored=BF16),
    "7B, 8 GPUs, DDP": Layout(MODELS["7B"], 8),
    "7B, 8 GPUs, FSDP2": Layout(MODELS["7B"], 8, sharded=True),
    "7B, 1 GPU, LoRA": Layout(MODELS["7B"], rank=16, stored=BF16),
    "70B, 64 GPUs, FSDP2": Layout(MODELS["70B"], 64, sharded=True),
    "70B, 64 GPUs, FSDP2, no whole copy": Layout(MODELS["70B"], 64, sharded=True, whole=False),
    "70B, 64 GPUs, FSDP2, LoRA, no whole copy": Layout(
        MODELS["70B"], 64, sharded=True, rank=16, stored=BF16, whole=False
    ),
}


def memory() -> str:
    """What every layout needs on each GPU, and whether that fits."""
    names = list(dict.fromkeys(name for layout in LAYOUTS.values() for name in layout.parts()))
    rows = []
    for title, layout in LAYOUTS.items():
        parts = layout.parts()
        fits = ["yes" if layout.update() <= size * GB - 4 * GB else "no" for size in (80, 141)]
        rows.append([title, *(gb(parts[n]) if parts.get(n) else None for n in names), gb(layout.update()), *fits])
    return markdown(["layout", *names, "in the update", "80 GB", "141 GB"], rows)


def sampling() -> str:
    """Rows of an embedded engine on the training GPUs."""
    rows = []
    for title, layout in LAYOUTS.items():
        rest = layout.resting()
        if layout.sharded and not layout.whole:
            continue
        rows.append([title, gb(rest), *(layout.rows(size * GB, 3072, 1024) for size in (80, 141))])
    return markdown(["layout", "held while sampling, GB", "rows on 80 GB", "rows on 141 GB"], rows)


def traffic(link: float = 50 * GB) -> str:
    """Bytes per GPU and their time over a link."""
    rows = []
    for title, layout in LAYOUTS.items():
        if layout.gpus > 1:
            parts = layout.per_pass()
            what = ", ".join(f"{name} {cell(gb(size))}" for name, size in parts.items())
            each = "micro-batch" if layout.sharded else "optimiser step"
            rows.append([title, each, what, gb(sum(parts.values())), sum(parts.values()) / link])
    return markdown(["layout", "per", "GB", "together", f"seconds at {link / GB:g} GB/s"], rows)


def versions(links: Sequence[tuple[str, float]] = (("10 Gbit/s", 1.25 * GB), ("400 Gbit/s", 50 * GB))) -> str:
    """One version on its way to the nodes of the workers."""
    rows = []
    for title in ("3B, 1 GPU", "3B, 1 GPU, LoRA", "7B, 8 GPUs, FSDP2", "7B, 1 GPU, LoRA", "70B, 64 GPUs, FSDP2"):
        size = LAYOUTS[title].sent()
        rows.append([title, gb(size), *(size / speed for _, speed in links)])
    return markdown(["layout", "GB a version", *(f"seconds a hop at {name}" for name, _ in links)], rows)


def simulated() -> str:
    """What the stored prediction of `benchmarks.simulate` says, in sentences; empty where there is none."""
    path = DOCS / "results" / "performance" / "simulate.json"
    if not path.exists():
        return ""
    data = json.loads(path.read_text())
    return f"{cell(data['ratio'])}: {data['of']}. " + " ".join(data["notes"])


def build() -> str:
    """The page's text."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((DOCS / "results" / "scale.md.jinja").read_text())
    return template.render(
        simulated=simulated(),
        sizes=sizes,
        memory=memory,
        sampling=sampling,
        traffic=traffic,
        versions=versions,
        layouts=LAYOUTS,
        gb=gb,
        cell=cell,
    )


def main() -> None:
    path = DOCS / "scale.md"
    path.write_text(build())
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
