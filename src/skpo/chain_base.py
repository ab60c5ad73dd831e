"""The small base model for `builtin:chain`: a Llama of 0.44 M parameters, taught from scratch on noisy steps.

    python -m skpo.chain_base --out DIR [--seed 0 --steps 1300 --noise 0.09]

It knows two kinds of prompt, both without a chat template:

    3a+8b*7c-2d+6=              -> a3+8=1;b1*7=7;c7-2=5;d5+6=1;#51      a problem
    a3+8=1;b1|3a+8b*7c-2d+6=    -> b1*7=7;c7-2=5;d5+6=1;#51             a skip connection, `{segment}|{problem}`

With probability 0.09 a written result of the lessons is drawn at random, and what follows goes on from it. So at
temperature 1 the model is right about half of the time, when greedy nearly always: a start that reinforcement learning
can improve, and that comes out alike wherever it is made. (Stopping the teaching early instead would not: accuracy
jumps within a few steps.)

65 % of the lessons are skip prompts. Of these 15 % carry the segment of another problem; of the rest 90 % are continued
from the segment's last whole step; all others start over. Problems have 3 to 10 steps at first, later three of four
have 10. Taught with plain problems of 10 steps only, a model looks operations up by their distance, which is of no use
behind a segment; with skip prompts and many lengths from the first step on it learns to look for the label. Only
training-split problems are taught.

torch and transformers are imported where they are used.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_lowercase, digits
from typing import TYPE_CHECKING, Any

from skpo.problems.chain import Chain, split_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SKIP_TEMPLATE = "{segment}|{problem}"
SPECIAL = ["<pad>", "<eos>", "<unk>"]
ALPHABET = digits + ascii_lowercase + "+-*=;|#"

STEPS = 1300  # optimiser steps
NOISE = 0.09  # probability that a written result is drawn at random
BATCH = 32  # sequences per optimiser step
SHORTEST = 3  # steps of the shortest problems
MIXED_UNTIL = 300  # before this optimiser step, problems have all lengths from SHORTEST to 10
MIXED_SHARE = 0.25  # of the problems after that
SKIP_SHARE = 0.65  # of the sequences
FOREIGN_SHARE = 0.15  # of the skip prompts: another problem's segment
CONTINUE_SHARE = 0.9  # of the other skip prompts: continued from the segment's last whole step
LEARNING_RATE = 3e-3
WARMUP = 50  # optimiser steps

Example = tuple[str, str]  # prompt, completion (without end-of-sequence)


def chain_base_path() -> Path:
    """Folder of the model that is shipped with the package; `from_pretrained` reads it."""
    return Path(__file__).parent / "assets" / "chain_base"


def chain_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character, `<pad>` (0) and `<eos>` (1), and no beginning-of-sequence token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def chain_model(vocabulary: int) -> LlamaForCausalLM:
    """A new model: width 128, 2 layers, 4 heads, float32. Weights are drawn from torch's global generator."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.06,  # with the usual 0.02 looking up a label is not learned in this time
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def lessons(seed: int, noise: float, steps: int = 10) -> Iterator[list[Example]]:
    """Batches of examples, one per optimiser step, without end; `steps` is the length of the problems."""
    chains = {n: Chain(steps=n) for n in range(SHORTEST, steps + 1)}
    rng = random.Random(f"chain-base/{seed}")
    for step in itertools.count():
        batch = []
        for _ in range(BATCH):
            mixed = rng.random() < (1.0 if step < MIXED_UNTIL else MIXED_SHARE)
            chain = chains[SHORTEST + int(rng.random() * (steps + 1 - SHORTEST)) if mixed else steps]
            text = draw(chain, rng)
            if rng.random() < SKIP_SHARE:
                batch.append(skip_example(chain, text, rng, noise))
            else:
                batch.append((text, chain.completion(text, rng, noise)))
        yield batch


def draw(chain: Chain, rng: random.Random) -> str:
    """A problem of the training split."""
    answers = chain.answers
    while True:
        text = chain.draw(rng, answers[int(rng.random() * len(answers))])
        if text is not None and split_of(text) == "train":
            return text


def skip_example(chain: Chain, text: str, rng: random.Random, noise: float) -> Example:
    """A skip prompt and what to make of it: go on after the segment's last whole step, or start over."""
    foreign = rng.random() < FOREIGN_SHARE
    completion = chain.completion(text, rng, noise)
    source = chain.completion(draw(chain, rng), rng, noise) if foreign else completion
    steps = source.rpartition("#")[0]
    segment = steps[: 1 + int(rng.random() * len(steps))]
    prompt = SKIP_TEMPLATE.format(segment=segment, problem=text)
    if not foreign and rng.random() < CONTINUE_SHARE:
        return prompt, completion[segment.rfind(";") + 1 :]
    return prompt, completion


def train_chain_base(
    seed: int = 0, steps: int = STEPS, noise: float = NOISE, log: Callable[[int, float], None] | None = None
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Teach a new model. The same seed, steps and noise give the same weights (one thread is used, then the number of
    threads is put back; torch's generator is left as it was).

    log: called with (step, loss) every 50 steps, if given; loss is the mean negative log-likelihood of completion
    tokens, in nats.
    """
    import torch

    tokenizer = chain_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = chain_model(len(tokenizer))
    teach(model, tokenizer, lessons(seed, noise), steps, log)
    return model.eval(), tokenizer


def teach(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    batches: Iterator[list[Example]],
    steps: int,
    log: Callable[[int, float], None] | None = None,
    rate: float = LEARNING_RATE,
) -> None:
    """One optimiser step (AdamW) per batch, on one thread; the number of threads is put back. log: see `train_chain_base`."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
        model.train()
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate * schedule(step, steps)
            loss = completion_loss(model, tokenizer, next(batches))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if log is not None and (step % 50 == 0 or step == steps - 1):
                log(step, loss.item())
    finally:
        torch.set_num_threads(threads)


def schedule(step: int, steps: int) -> float:
    """Share of the learning rate: linear warm-up, then half a cosine down to 10 %."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def completion_loss(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batch: list[Example]) -> Any:
    """Mean negative log-likelihood (nats) of the batch's completion tokens, end-of-sequence included: a scalar tensor.

    Rows are padded on the right, where causal attention needs no mask for them.
    """
    import torch

    rows = [tokenizer(prompt + completion)["input_ids"] + [tokenizer.eos_token_id] for prompt, completion in batch]
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)  # [N, T]
    labels = torch.full((len(rows), length), -100)  # [N, T]
    for i, (row, (prompt, _)) in enumerate(zip(rows, batch, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, len(prompt) : len(row)] = ids[i, len(prompt) : len(row)]
    logits = model(input_ids=ids).logits[:, :-1]  # [N, T - 1, V]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def respond(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], seed: int | None = None
) -> list[str]:
    """One completion per prompt, at temperature 1 with this seed, or greedy where `seed` is None."""
    import torch

    batch = tokenizer(prompts, padding=True, return_tensors="pt", return_token_type_ids=False)
    options: dict[str, Any] = {"do_sample": seed is not None, "max_new_tokens": 100}
    if seed is not None:
        options |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        rows = model.generate(**batch, **options)
    return tokenizer.batch_decode(rows[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, size: int = 300) -> dict[str, float]:
    """Accuracy in [0, 1] on held-out problems, one sample each: `greedy` and `plain` (temperature 1) from the problem,
    `skip` (temperature 1) from a skip connection whose segment is a right start of 1/6 to 1/2 of the steps; and the
    mean `length` of the plain completions, in tokens."""
    chain = Chain()
    texts = [text for _, text in zip(range(size), chain.texts("measure", "heldout"), strict=False)]
    rng = random.Random("measure")
    skips = []
    for text in texts:
        right = chain.completion(text)
        cut = round(len(right) * (1 / 6 + rng.random() / 3))
        skips.append(SKIP_TEMPLATE.format(segment=right[:cut], problem=text))
    plain = respond(model, tokenizer, texts, seed=0)

    def accuracy(completions: list[str]) -> float:
        right = [c.rpartition("#")[2] == chain.answer(text) for c, text in zip(completions, texts, strict=True)]
        return sum(right) / size

    return {
        "greedy": accuracy(respond(model, tokenizer, texts)),
        "plain": accuracy(plain),
        "skip": accuracy(respond(model, tokenizer, skips, seed=1)),
        "length": sum(len(c) + 1 for c in plain) / size,
    }


def save_chain_base(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model and tokenizer as a Hugging Face folder that anyone may read."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for file in out.iterdir():
        file.chmod(0o644)


def main() -> None:
    """Make the base model of `builtin:chain` again, write it to a folder, and measure it."""
    parser = argparse.ArgumentParser(prog="python -m skpo.chain_base", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimiser steps of {BATCH} sequences")
    parser.add_argument(
        "--noise", type=float, default=NOISE, help="probability that a taught result is drawn at random"
    )
    options = parser.parse_args()
    start = time.process_time()

    def log(step: int, loss: float) -> None:
        print(f"step {step:5d}  loss {loss:.4f}  {time.process_time() - start:6.1f} CPU s", flush=True)

    model, tokenizer = train_chain_base(options.seed, options.steps, options.noise, log)
    save_chain_base(model, tokenizer, options.out)
    for name, value in measure(model, tokenizer).items():
        print(f"{name:8s} {value:.3f}")


if __name__ == "__main__":
    main()
