"""A whole optimiser step (rollout, verify, train) against TRL's `GRPOTrainer`: pip install "skpo[bench]".

Both train the same model with GRPO on the same problems, in float32, with the same group size, number of problems, budget of
tokens, threads and reward function, by turns, one step each. Lengths are what the model samples: a sequence ends at the same
end-of-sequence tokens on both sides. Tokens per second count what each side generated and trained on.

TRL as it is meant to run on a CPU: no vLLM, no bf16, no gradient checkpointing, no logging or saving, no pass for old
log-probabilities, one generation batch for the whole step. Its training pass takes the step's rows at once or in four
parts; both are tried, and the faster one counts.

    chain    the recipe `chain`: short, even lengths
    tail     4 M parameters, prompts of 32 tokens, lengths with a geometric tail of mean 64, at most 256
    prompts  4 M parameters, prompts of 128 tokens, completions as long
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common import Options, Report, Turn, by_turns, machine, parse, quotient, spread
from benchmarks.trainers import Step, Stepper, hush, last_word_even, skpo_run, word_model, word_problems

MISSING = 'TRL is not installed; this benchmark compares with it. Install it: pip install -e ".[bench]" (or: pip install trl==1.16.0)'


@dataclass(frozen=True)
class Work:
    """What both trainers train. prompt: words of a prompt, None for the chain recipe; mean: see `word_model`."""

    name: str
    problems: int
    group: int
    budget: int
    least: float
    prompt: int | None = None
    mean: int | None = None

    @property
    def title(self) -> str:
        return f"{self.name}: {self.problems} problems x {self.group}, at most {self.budget} tokens"


WORKS = (
    Work("chain", 32, 8, 128, 2.0),
    Work("tail", 4, 8, 256, 3.0, prompt=32, mean=64),
    Work("prompts", 4, 8, 128, 3.0, prompt=128),
)
QUICK = (Work("chain", 4, 4, 96, 2.0), Work("tail", 2, 4, 48, 3.0, prompt=16, mean=16))


def prepare(work: Work, folder: Path) -> tuple[str, list[str], str, list[dict[str, Any]]]:
    """(recipe, overrides) for this library's trainer, and (model folder, problems) for TRL's."""
    sizes = [f"problems_per_step={work.problems}", f"group_size={work.group}", "algorithm=grpo", "optimizer.lr=1e-6"]
    sizes += [f"rollout.max_completion_tokens={work.budget}", f"out={folder / 'run'}"]
    if work.prompt is None:
        from skpo.chain_base import chain_base_path
        from skpo.problems import load_problems

        rows = [
            {"prompt": p.prompt, "answer": p.answer}
            for p in load_problems("builtin:chain?steps=10&size=256&split=train")
        ]
        return "chain", sizes, str(chain_base_path()), rows
    model = word_model(folder / "model", mean=work.mean)
    path = word_problems(folder / "problems.jsonl", 16 * work.problems, work.prompt)
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"model: {{path: {model}}}\nproblems: {{train: {path}, verifier: 'python:benchmarks.trainers:last_word_even'}}\n"
    )
    from skpo.problems import load_problems

    rows = [{"prompt": p.prompt, "answer": p.answer} for p in load_problems(str(path))]
    return str(recipe), [*sizes, "optimizer.weight_decay=0"], str(model), rows


def exact_reward(completions: Sequence[str], answer: Sequence[Any], **columns: Any) -> list[float]:
    """This library's verifier `exact`, as a reward function for TRL."""
    from skpo.verifiers import get_verifier

    verifier = get_verifier("exact")
    return [verifier.score(c, a) for c, a in zip(completions, answer, strict=True)]


def trl_run(work: Work, model: str, rows: list[dict[str, Any]], folder: Path, options: Options, parts: int) -> Stepper:
    """A run of TRL's trainer; the training pass takes the step's rows in `parts` parts."""

    def run(gate: Callable[[Step | None], None]) -> None:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        class Gate(TrainerCallback):
            last: Step | None = None

            def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                gate(self.last)
                trainer.counted, trainer.seconds = 0.0, 0.0
                self.begin = options.clock_now()

            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                train = options.clock_now() - self.begin - trainer.seconds
                self.last = {"tokens": trainer.counted, "rollout": trainer.seconds, "train": train}

        class Counted(GRPOTrainer):
            counted = seconds = 0.0

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                begin = options.clock_now()
                out = super()._generate_and_score_completions(inputs)
                self.seconds += options.clock_now() - begin
                self.counted += float(out["completion_mask"].sum())
                return out

        whole = work.problems * work.group
        config = GRPOConfig(
            output_dir=str(folder / "trl"), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
            per_device_train_batch_size=whole // parts, gradient_accumulation_steps=parts, generation_batch_size=whole,
            num_generations=work.group, max_completion_length=work.budget, temperature=1.0, top_p=1.0, top_k=0,
            beta=0.0, num_iterations=1, loss_type="grpo", epsilon=0.2, epsilon_high=0.28, scale_rewards="group",
            learning_rate=1e-6, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0,
            max_steps=100000, logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_num_workers=0, dataloader_pin_memory=False, log_completions=False, seed=0,
        )  # fmt: skip
        trainer = Counted(
            model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
            reward_funcs=exact_reward if work.prompt is None else last_word_even,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model),
            callbacks=[Gate()],
        )
        trainer.train()

    return Stepper(run, options.threads)


def compare(work: Work, options: Options) -> tuple[dict[str, list[Turn]], str]:
    """Timings by side, and the name of the faster of TRL's two."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        recipe, overrides, model, rows = prepare(work, folder)
        ours = stack.enter_context(skpo_run(recipe, overrides, options))
        sides: dict[str, Callable[[], Step]] = {"skpo": ours}
        for parts in (1,) if options.quick else (1, 4):
            with ExitStack() as tried:
                side = tried.enter_context(trl_run(work, model, rows, folder / str(parts), options, parts))
                sides[f"TRL, {parts} part{'s'[: parts > 1]}"] = side
                stack.push(tried.pop_all())
        timed: dict[str, list[Turn]] = {}
        theirs = [name for name in sides if name != "skpo"]
        if len(theirs) > 1:
            timed = by_turns({n: sides[n] for n in theirs}, replace(options, repeats=1), warm=0)
        best = max(theirs, key=lambda n: timed[n][0].rate()) if timed else theirs[0]
        return timed | by_turns({"skpo": ours, best: sides[best]}, options), best


def main() -> None:
    def more(parser: Any) -> None:
        parser.add_argument("--work", choices=[w.name for w in WORKS], help="only this work")

    options = parse(__doc__, more, repeats=3)
    if find_spec("trl") is None:
        raise SystemExit(MISSING)
    hush()
    report: Report | None = None
    for work in QUICK if options.quick else WORKS:
        if options.extra["work"] not in (None, work.name):
            continue
        timed, best = compare(work, options)
        ratio = quotient(timed["skpo"], timed[best])
        if report is None:
            of = f"tokens per second of a whole step, skpo over TRL ({work.title})"
            report = Report("step", of, ratio, machine("trl", "accelerate"))
        report.table(
            work.title,
            ["side", "tokens/s", "tokens a step", "seconds a step", "rollout", "train"],
            _rows(timed, best, ratio),
        )
        report.bar(f"{work.name}: tokens per second, skpo over TRL", ratio, least=work.least)
    if report is None:
        raise SystemExit("--quick has the works chain and tail only")
    report.note(
        "Rollout is generation and verification; train is all the rest of the optimiser's pass. Parts are in seconds by the wall clock."
    )
    report.finish(options)


def _rows(timed: dict[str, list[Turn]], best: str, ratio: Any) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for name, turns in timed.items():
        rollout = [t.counts["rollout"] for t in turns]
        rows.append([
            name, spread(t.rate() for t in turns), spread(t.counts["tokens"] for t in turns), spread(t.seconds for t in turns),
            spread(rollout), spread(t.counts["train"] for t in turns),
        ])  # fmt: skip
    pairs = list(zip(timed["skpo"], timed[best], strict=True))

    def per_token(part: Callable[[Step], float]) -> Any:
        return spread((part(b.counts) / b.counts["tokens"]) / (part(a.counts) / a.counts["tokens"]) for a, b in pairs)

    parts = [per_token(lambda c: c["rollout"]), per_token(lambda c: c["train"])]
    return [*rows, [f"skpo over {best}, per token", ratio, None, None, *parts]]


if __name__ == "__main__":
    main()
