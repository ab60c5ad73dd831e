"""The small base model for `builtin:fork`: chain-base, taught on to choose a route, badly, and to walk it.

    python -m skpo.fork_base --out DIR [--seed 0 --steps 250 --noise 0.09 --doubt 0.8]

It knows two kinds of prompt, both without a chat template (here with two routes of three steps):

    3ua+8b*7c-vd+6e-1f+=7               -> vd+6e-1f+;d3+6=9;e9-1=8;f8+2=0;#80     a problem
    vd+6e-1f+;d3+|3ua+8b*7c-vd+6e-1f+=7 -> d3+6=9;e9-1=8;f8+2=0;#80               a skip connection, `{segment}|{problem}`

The problems are those of `builtin:fork?luck=4`. In the first 75 batches the route is the right one, after that it is drawn at
random with probability 0.8, which makes it right in 0.47 of the lessons: the model has an inkling of the table of marks, and
reinforcement learning has to find out that it pays to follow it. The mark is the last token of every prompt, so that the
route follows it directly. Each written result is drawn at random with probability 0.09, and what follows goes on from it;
the smudged operand is a guess.

65 % of the lessons are skip prompts. Of these 15 % carry the segment of another problem and start over, with a route of
their own; of the rest 90 % go on after the segment's last whole piece, on the segment's route; all others start over.
Only training-split problems are taught. Weights are kept in bfloat16.

What teaching is, is as in `skpo.chain_base`. torch and transformers are imported where they are used.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo.chain_base import (
    BATCH,
    CONTINUE_SHARE,
    FOREIGN_SHARE,
    SKIP_SHARE,
    SKIP_TEMPLATE,
    Example,
    chain_base_path,
    respond,
    save_chain_base,
    teach,
)
from skpo.problems.chain import below, split_of
from skpo.problems.fork import MARKS, Fork

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

LUCK = 4  # the smudged operand is one of 0 to 3
STEPS = 250  # optimiser steps
NOISE = 0.09  # probability that a written result is drawn at random
DOUBT = 0.8  # probability that the route is, after SURE_UNTIL
SURE_UNTIL = 75  # before this optimiser step the route taught is the right one
LEARNING_RATE = 2e-3


def fork_base_path() -> Path:
    """Folder of the model that is shipped with the package; `from_pretrained` reads it."""
    return Path(__file__).parent / "assets" / "fork_base"


def lessons(seed: int, noise: float, doubt: float) -> Iterator[list[Example]]:
    """Batches of examples, one per optimiser step, without end."""
    fork, rng = Fork(luck=LUCK), random.Random(f"fork-base/{seed}")
    for step in itertools.count():
        batch, unsure = [], doubt if step >= SURE_UNTIL else 0.0
        for _ in range(BATCH):
            text = draw(fork, rng)
            if rng.random() < SKIP_SHARE:
                batch.append(skip_example(fork, text, rng, noise, unsure))
            else:
                batch.append((text, fork.completion(text, rng, noise=noise, doubt=unsure)))
        yield batch


def draw(fork: Fork, rng: random.Random) -> str:
    """A problem of the training split."""
    answers = list(fork.last_moves)
    while True:
        found = fork.draw(rng, MARKS[below(rng, len(MARKS))], answers[below(rng, len(answers))])
        if found is not None and split_of(found[0]) == "train":
            return found[0]


def skip_example(fork: Fork, text: str, rng: random.Random, noise: float, doubt: float) -> Example:
    """A skip prompt and what to make of it: go on after the segment's last whole piece, or start over."""
    foreign = rng.random() < FOREIGN_SHARE
    pieces = fork.pieces(text, rng, noise=noise, doubt=doubt)
    source = fork.pieces(draw(fork, rng), rng, noise=noise, doubt=doubt) if foreign else pieces
    work = "".join(source[:-1])
    segment = work[: 1 + below(rng, len(work))]
    prompt = SKIP_TEMPLATE.format(segment=segment, problem=text)
    if foreign or rng.random() >= CONTINUE_SHARE:
        return prompt, fork.completion(text, rng, noise=noise, doubt=doubt)
    whole = sum(end <= len(segment) for end in itertools.accumulate(map(len, pieces)))
    return prompt, "".join(pieces[whole:])


def train_fork_base(
    seed: int = 0,
    steps: int = STEPS,
    noise: float = NOISE,
    doubt: float = DOUBT,
    log: Callable[[int, float], None] | None = None,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Teach chain-base on. The same arguments give the same weights; the model is in bfloat16's numbers, as float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(chain_base_path())
    model: Any = AutoModelForCausalLM.from_pretrained(chain_base_path(), dtype=torch.float32)
    teach(model, tokenizer, lessons(seed, noise, doubt), steps, log, rate=LEARNING_RATE)
    return model.to(torch.bfloat16).float().eval(), tokenizer


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, size: int = 300) -> dict[str, float]:
    """On held-out problems, one sample each at temperature 1, in [0, 1]: `plain`, accuracy from the problem; `route` and `walk`,
    the shares of plain completions on the right route, and of those that are right; `whole`, those whose steps are of one
    route; `skip right` and `skip wrong`, accuracy behind a segment of 1/6 to 1/2 of a faultless completion on the right
    and on another route; `kept`, completions on their segment's route."""
    fork = Fork(luck=LUCK)
    problems = list(itertools.islice(fork.texts("measure", "heldout"), size))
    answers = [fork.completion(text, operand=n).rpartition("#")[2] for text, n in problems]
    texts = [text for text, _ in problems]
    plain = respond(model, tokenizer, texts, seed=0)

    def right(completions: list[str]) -> list[bool]:
        return [c.rpartition("#")[2] == answer for c, answer in zip(completions, answers, strict=True)]

    chosen = [fork.chosen(text, c) for c, text in zip(plain, texts, strict=True)]
    on_route = [name == fork.right_route(text) for name, text in zip(chosen, texts, strict=True)]
    found = {
        "plain": sum(right(plain)) / size,
        "route": sum(on_route) / size,
        "walk": sum(a for a, on in zip(right(plain), on_route, strict=True) if on) / max(1, sum(on_route)),
        "whole": sum(_whole(fork, text, c) for text, c in zip(texts, plain, strict=True)) / size,
    }
    rng, kept = random.Random("measure"), 0
    for kind in ("right", "wrong"):
        prompts, names = [], []
        for text, n in problems:
            work = fork.completion(text, operand=n)
            while (fork.chosen(text, work) == fork.right_route(text)) != (kind == "right"):
                work = fork.completion(text, rng, doubt=1.0)
            names.append(work[0])
            prompts.append(
                SKIP_TEMPLATE.format(segment=work[: round(len(work) * (1 / 6 + rng.random() / 3))], problem=text)
            )
        completions = respond(model, tokenizer, prompts, seed=1)
        kept += sum(fork.chosen(t, c) == name for t, c, name in zip(texts, completions, names, strict=True))
        found[f"skip {kind}"] = sum(right(completions)) / size
    return {**found, "kept": kept / size / 2}


def _whole(fork: Fork, text: str, completion: str) -> bool:
    """The completion is one that `fork` could have written, but for wrong results and the guess."""
    name = fork.chosen(text, completion)
    if name is None or completion[:1] != name:
        return False
    labels = [label for label, *_ in fork.parse(text).routes[name]]
    plan, _, rest = completion.partition(";")
    return [c for c in plan[1:] if c.isalpha()] == labels and [c for c in rest if c.isalpha()] == labels


def save_fork_base(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model, in bfloat16, and tokenizer as a Hugging Face folder."""
    import copy

    import torch

    rounded: Any = copy.deepcopy(model)
    save_chain_base(rounded.to(torch.bfloat16), tokenizer, out)


def main() -> None:
    """Make the base model of `builtin:fork` again, write it to a folder, and measure it."""
    parser = argparse.ArgumentParser(prog="python -m skpo.fork_base", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimiser steps of {BATCH} sequences")
    parser.add_argument("--noise", type=float, default=NOISE, help="probability that a result is drawn at random")
    parser.add_argument("--doubt", type=float, default=DOUBT, help="probability that the route is drawn at random")
    options = parser.parse_args()
    start = time.process_time()

    def log(step: int, loss: float) -> None:
        print(f"step {step:5d}  loss {loss:.4f}  {time.process_time() - start:6.1f} CPU s", flush=True)

    model, tokenizer = train_fork_base(options.seed, options.steps, options.noise, options.doubt, log)
    save_fork_base(model, tokenizer, options.out)
    for name, value in measure(model, tokenizer).items():
        print(f"{name:10s} {value:.3f}")


if __name__ == "__main__":
    main()
