"""Whole training runs that a benchmark takes one optimiser step at a time, and the models and problems that they train on."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.common import Options, set_threads

Step = dict[str, float]  #: counts of one optimiser step: tokens generated, seconds of its parts


class Stepper:
    """A run in a thread of its own that does one step whenever it is called, and waits otherwise.

    run: the whole run; it calls the function that it is given before each step, with the counts of the step before. A step's time
    includes all that the run does between two of these calls. Leaving the `with` block ends the run. Accelerate keeps its state of
    gradient accumulation once for a process; here every run has its own.
    """

    def __init__(self, run: Callable[[Callable[[Step | None], None]], Any], threads: int) -> None:
        self._run, self._threads = run, threads
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._last: Step | None = None
        self._error: BaseException | None = None
        self._stop = False
        self._thread = threading.Thread(target=self._main, daemon=True)

    def __enter__(self) -> Stepper:
        self._thread.start()
        self._wait()  # until the first step may begin: models are loaded by then
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop = True
        self._go.release()
        self._thread.join(60)

    def __call__(self) -> Step:
        """One step. Raises what the run raises."""
        self._go.release()
        self._wait()
        assert self._last is not None
        return self._last

    def _wait(self) -> None:
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def _gate(self, counts: Step | None) -> None:
        from accelerate.state import GradientState

        shared = GradientState._shared_state
        own, self._last = dict(shared), counts
        self._done.release()
        self._go.acquire()
        shared.clear()
        shared.update(own)
        if self._stop:
            raise _Ended

    def _main(self) -> None:
        from accelerate.state import GradientState

        try:
            set_threads(self._threads)
            GradientState._shared_state.clear()
            self._run(self._gate)
            raise RuntimeError("the run ended before the benchmark did")
        except _Ended:
            pass
        except BaseException as error:
            self._error = error
            self._done.release()


class _Ended(BaseException):
    """Leaves a run from within its loop."""


def skpo_run(recipe: str, overrides: Sequence[str], options: Options) -> Stepper:
    """A run of this library's own trainer: without evaluation, checkpoints and rollout files, with its metrics.

    Counts of a step: tokens (generated), trained, rollout (seconds, verification included) and train (seconds of the rest); steps
    (decode steps) and computed (tokens that went through the model for them, prompts included).
    """
    from skpo.settings import load_config
    from skpo.trainer import Trainer
    from skpo.trainer.progress import Progress

    quiet = ["steps=100000", "eval_every=0", "eval.at_start=false", "checkpoint.every=0", "rollout.save=false"]
    config = load_config(recipe, [*overrides, *quiet, f"threads={options.threads}", "problems.heldout=null"])

    class Stepwise(Trainer):
        last: Step | None = None
        rolled = 0.0

        def _one_step(self) -> None:
            gate(self.last)
            begin = options.clock_now()
            super()._one_step()
            self.last = {
                "tokens": float(self.record["tokens_generated"]),
                "trained": float(self.record["tokens_trained"]),
                "steps": float(self.record["engine_steps"]),
                "computed": self.record["tokens_prefilled"]
                + self.record["engine_steps"] * self.record["slots_computed"],
                "rollout": self.rolled - begin,
                "train": options.clock_now() - self.rolled,
            }

        def _credit(self, groups: Any) -> Any:
            self.rolled = options.clock_now()
            return super()._credit(groups)

        def _train(self, run: Any, parts: Any) -> Any:
            write = run.record

            def record(values: Any) -> None:
                self.record = values
                write(values)

            run.record = record
            run.progress = Progress(quiet=True, main=False)
            return super()._train(run, parts)

    gate: Callable[[Step | None], None]

    def run(wait: Callable[[Step | None], None]) -> None:
        nonlocal gate
        gate = wait
        Stepwise(config, quiet=True).train()

    return Stepper(run, options.threads)


def hush() -> None:
    """No progress bars and no advice from transformers and TRL between the tables."""
    import warnings

    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def word_model(folder: Path, *, shape: str = "4M", mean: int | None = None, seed: int = 0) -> Path:
    """A model of `shape` with random weights and a tokenizer of words w2, w3, ... in `folder`, as any trainer loads it.

    mean: about so many tokens end a sequence on average. Random weights give nearly every token the same probability, so ending
    tokens as one in `mean` of the vocabulary make lengths geometric: a real tail, drawn by each trainer's own sampling.
    None: one token of the vocabulary ends a sequence, which is seldom drawn.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from benchmarks.models import SHAPES, build

    size = int(SHAPES[shape]["vocab_size"])
    words = {"<pad>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = build(shape, seed)
    ends = list(range(1, 1 + (1 if mean is None else round(size / mean))))
    model.config.eos_token_id = model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    return folder


def word_problems(path: Path, count: int, length: int, *, vocabulary: int = 4096, seed: int = 0) -> Path:
    """`count` prompts of `length` random words each, as JSON lines."""
    rng = random.Random(seed)
    first = vocabulary // 4  # behind every token that may end a sequence
    lines = [
        {"prompt": " ".join(f"w{rng.randrange(first, vocabulary)}" for _ in range(length)), "answer": "even"}
        for _ in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def last_word_even(completions: Sequence[str], **columns: Any) -> list[float]:
    """1 for a completion whose last word has an even number: right about every second time, whatever the model."""
    words = [c.split()[-1:] for c in completions]
    return [float(bool(w) and int(w[0].removeprefix("w")) % 2 == 0) for w in words]
