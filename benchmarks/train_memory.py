"""Peak memory and time of the training pass, against sequence length and vocabulary.

One pass is what the trainer does with a micro-batch: log-probability and entropy of every sampled token of one group of 8, and the
backward pass. Half of each row is the context that the group shares. Three sides:

    shared   the group computes its context once (the default)
    padded   every row computes its own; head in chunks, as above
    plain    padded, all logits at once through the model's own head and autograd, as most trainers do (in the first turn)

Each vocabulary and length has a process of its own, in which the sides take turns. Peak: the most that the process held during the
pass (Linux' high-water mark; allocated on a GPU) over what it held before; of that, weights and their gradients count as the model's
own. `first`: gradients were empty, as in the first micro-batch of an optimiser step. `later`: the pass adds to them. Both are timed.
The headline is the shared pass' peak at the larger vocabulary over the smaller, first pass, longest rows.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import Options, Report, Spread, machine, parse, spread

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARIES = (49_152, 151_936)
GROUP = 8
SIDES = ("shared", "padded", "plain")
MIB = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", help="model: 135M, or 4M (default: 135M; quick: 4M)")
    parser.add_argument(
        "--halves",
        type=int,
        nargs="+",
        help="tokens of the context, and of each completion (default: 64 128; quick: 64)",
    )


def main() -> None:
    options = parse(__doc__, add_options, repeats=1)
    shape = options.extra["shape"] or ("4M" if options.quick else "135M")
    halves = options.extra["halves"] or ([64] if options.quick else [64, 128])
    options.extra.clear()
    context = multiprocessing.get_context("forkserver")  # a fresh process a case, but libraries are loaded once
    context.set_forkserver_preload(
        ["benchmarks.models", "transformers.models.llama.modeling_llama", "skpo.policy.scoring"]
    )
    found = {}
    for half in halves:
        for vocabulary in VOCABULARIES:
            receive, send = context.Pipe(duplex=False)
            case = context.Process(target=measure, args=(send, shape, vocabulary, half, options))
            case.start()
            send.close()
            try:
                found[vocabulary, half] = receive.recv()
            except EOFError:
                case.join()
                raise SystemExit(f"{vocabulary} x {half}: the process ended with code {case.exitcode}") from None
            case.join()
    report(found, shape, halves, options).finish(options)


def report(found: dict[tuple[int, int], dict[str, Any]], shape: str, halves: list[int], options: Options) -> Report:
    small, large = VOCABULARIES
    growth = {side: found[large, halves[-1]][side]["first"] / found[small, halves[-1]][side]["first"] for side in SIDES}
    facts = machine()
    facts["threads"] = options.threads
    out = Report(
        "train_memory", f"peak memory over weights and gradients, vocabulary {large:,} over {small:,}, shared prefix",
        growth["shared"], machine=facts, settings={"shape": shape, "group": GROUP, "halves": halves},
    )  # fmt: skip
    rows = []
    for (vocabulary, half), sides in found.items():
        for side in SIDES:
            s = sides[side]
            rows.append(
                [f"{half} + {half}", vocabulary, side, s["computed"], spread(s["seconds"]), s["first"], s["later"]]
            )
    columns = ["context + completion", "vocabulary", "side", "tokens computed", "seconds", "peak MiB, first", "later"]
    out.table(f"One group of {GROUP}, {shape} shape, float32", columns, rows)
    faster = {key: _paired(sides["padded"]["seconds"], sides["shared"]["seconds"]) for key, sides in found.items()}
    out.table(
        "Shared prefix beside padded",
        ["context + completion", "vocabulary", "times faster", "largest relative difference of the gradient"],
        [[f"{half} + {half}", v, faster[v, half], found[v, half]["difference"]] for v, half in found],
    )
    later = found[large, halves[-1]]["shared"]["later"] / found[small, halves[-1]]["shared"]["later"]
    out.table(
        f"Peak at {large:,} over peak at {small:,}",
        ["side", "first", "later"],
        [
            [side, growth[side], found[large, halves[-1]][side]["later"] / found[small, halves[-1]][side]["later"]]
            for side in SIDES
        ],
    )
    out.bar("peak memory, larger vocabulary over smaller", growth["shared"], most=1.1)
    out.bar("the same where the pass adds to gradients", later, most=1.1)
    out.bar("shared prefix over padded, times faster", faster[small, halves[-1]], least=1.5)
    out.bar("relative difference of the gradients", max(s["difference"] for s in found.values()), most=1e-5)
    return out


def _paired(over: list[float], under: list[float]) -> Spread:
    return spread(a / b for a, b in zip(over, under, strict=True))


def measure(send: Any, shape: str, vocabulary: int, half: int, options: Options) -> None:
    """All sides of one case, in this process; sends a dictionary by side, and the gradients' `difference`."""
    import torch

    from benchmarks.common import set_threads
    from benchmarks.models import SHAPES, build
    from skpo.policy.scoring import ScoringModel

    set_threads(options.threads)
    SHAPES[shape] = {**SHAPES[shape], "vocab_size": vocabulary}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scoring = ScoringModel(build(shape).to(device), in_place=True)  # as the trainer has it in one process
    rows = group_rows(half, vocabulary)
    out: dict[str, Any] = {side: {"seconds": [], "firsts": [], "laters": []} for side in SIDES}
    parameters = list(scoring.parameters())
    gradients = {}
    for side in SIDES:  # first calls load code and make buffers that stay
        one_pass(scoring, [(c[:2], t[:3]) for c, t in rows], side, device)
    for turn in range(options.repeats):
        for side in SIDES if turn == 0 else SIDES[1::-1]:
            scoring.zero_grad(set_to_none=True)
            for name in ("firsts", "laters"):
                peak = Peak(device)
                begin = options.clock_now()
                out[side]["computed"] = one_pass(scoring, rows, side, device)
                seconds = options.clock_now() - begin
                grown = peak.reached()
                out[side]["seconds"].append(seconds)
                if name == "firsts":
                    grown -= sum(p.grad.nbytes for p in parameters if p.grad is not None)
                    if turn == 0 and side != "plain":
                        gradients[side] = [p.grad.clone() for p in parameters if p.grad is not None]
                out[side][name].append(grown / MIB)
        if turn == 0:
            out["difference"] = difference(gradients.pop("shared"), gradients.pop("padded"))
    for side in SIDES:
        out[side]["first"], out[side]["later"] = (spread(out[side][name]) for name in ("firsts", "laters"))
        out[side]["first"], out[side]["later"] = out[side]["first"].median, out[side]["later"].median
    send.send(out)


def group_rows(half: int, vocabulary: int) -> list[tuple[list[int], Any]]:
    """A group whose completions are as long as the context that they share."""
    import numpy as np

    rng = np.random.default_rng(0)
    context = rng.integers(0, vocabulary, half).tolist()
    return [(context, rng.integers(0, vocabulary, half)) for _ in range(GROUP)]


def one_pass(scoring: Any, rows: list[Any], side: str, device: str) -> int:
    """Forward and backward of the rows as one micro-batch; tokens computed."""
    from skpo.policy.scoring import PackedRows

    packed = PackedRows.from_rows(rows, device, share=side == "shared")
    logp = plain(scoring, packed) if side == "plain" else scoring(*packed.inputs)[0]
    logp.mean().backward()
    return packed.input_ids.numel()


def plain(scoring: Any, packed: Any) -> Tensor:
    """Log-probabilities from the model's own logits of every position."""
    import torch

    logits = scoring.model(input_ids=packed.input_ids, use_cache=False).logits
    logp = torch.log_softmax(logits.flatten(0, 1)[packed.place].float(), -1)
    return logp.gather(-1, packed.target[:, None])


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Norm of the gradients' difference over their norm."""
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, expected, strict=True))
    return float((apart / sum(float(b.double().square().sum()) for b in expected)) ** 0.5)


class Peak:
    """The most memory that this process comes to hold from now on, over what it holds now, in bytes."""

    def __init__(self, device: str) -> None:
        gc.collect()
        self.cuda = device == "cuda"
        if self.cuda:
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
            self.before = _status("VmRSS")

    def reached(self) -> int:
        if self.cuda:
            import torch

            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self.before
        return _status("VmHWM") - self.before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}: peak memory of a CPU is measured on Linux only")


if __name__ == "__main__":
    main()
