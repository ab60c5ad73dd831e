"""A model on problem sources: loads what is needed, runs, resumes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo.config import ModelConfig
from skpo.errors import ConfigError
from skpo.evaluation.result import Evaluation, Suite
from skpo.evaluation.run import run_evaluation
from skpo.evaluation.store import SampleFile, file_name, open_folder, write_results
from skpo.problems.base import Problem
from skpo.rollout.types import Sampling

if TYPE_CHECKING:
    from skpo.policy.loading import LoadedPolicy

Source = str | Sequence[Problem]
DEADLINE = 2.0


@dataclass
class Task:
    """One problem source, read."""

    name: str
    problems: list[Problem]
    samples: int
    deadline: float


def evaluate(model: str | ModelConfig | Any, problems: Source, **options: Any) -> Evaluation:
    """Evaluate a model on one problem source; options as in `evaluate_all`."""
    return evaluate_all(model, [problems], **options).results[0]


def evaluate_all(
    model: str | ModelConfig | Any,
    sources: Sequence[Source],
    *,
    samples: int | None = None,
    default_samples: int = 4,
    ks: Iterable[int] = (1,),
    verifier: str = "math",
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_tokens: int = 1024,
    limit: int | None = None,
    seed: int = 0,
    workers: int = 1,
    deadline: float | None = None,
    unsafe_code: bool = False,
    prompt_key: str = "prompt",
    answer_key: str = "answer",
    slots: int = 256,
    out: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Suite:
    """Evaluate a model on problem sources: mean@k, pass@k and maj@k with bootstrap intervals over problems.

    model:    anything `ModelConfig.path` accepts, a `ModelConfig`, or a `LoadedPolicy`.
    sources:  texts as for `load_problems` (files, `hf:`, `gym:`, `builtin:`, benchmarks), or lists of problems.
    samples:  per problem, at `temperature` (0: greedy), each of at most `max_tokens` tokens; None: what the benchmark says,
              else `default_samples`. `ks` above it are left out.
    deadline: seconds an answer may take to verify; None: what the benchmark says, else 2.
    out:      a folder that keeps every sample; the same call goes on where it was stopped.
    progress: told (source, problems scored, problems in all).

    Raises `RunError` where `out` holds an evaluation with other settings.
    """
    from skpo.policy.loading import LoadedPolicy, load_policy
    from skpo.policy.prompts import PromptRenderer
    from skpo.rollout.embedded import EmbeddedEngine
    from skpo.trainer.judge import Judge
    from skpo.verifiers.pool import VerifierPool

    keys = {"prompt_key": prompt_key, "answer_key": answer_key, "verifier": verifier, "limit": limit}
    tasks = [_task(source, number, (samples, default_samples), deadline, keys) for number, source in enumerate(sources)]
    names = {p.verifier or verifier for task in tasks for p in task.problems}
    with VerifierPool(workers, unsafe_code=unsafe_code) as first:
        first.require(names)  # before anything slow
    config = ModelConfig(path=model) if isinstance(model, str | Path) else model
    policy = model if isinstance(model, LoadedPolicy) else load_policy(config)
    if isinstance(model, LoadedPolicy):
        config = ModelConfig(path=policy.source or "model")
    settings = {
        "model": config.path, "temperature": temperature, "top_p": top_p, "top_k": top_k, "max_tokens": max_tokens,
        "seed": seed, "verifier": verifier,
    }  # fmt: skip
    if out is not None:
        open_folder(Path(out), {**settings, "weights": fingerprint(policy), **_identity(config, tasks)})
    renderer = PromptRenderer(policy.tokenizer, config, policy.chat)
    engine = EmbeddedEngine(policy.model, eos_ids=policy.eos_ids, slots=slots)
    sampling, results = Sampling(temperature, top_p, top_k), []
    for number, task in enumerate(tasks):
        begin = time.perf_counter()
        with VerifierPool(workers, deadline=task.deadline, unsafe_code=unsafe_code) as pool:
            result = run_evaluation(
                engine, renderer, Judge(pool, renderer.decode, verifier), task.problems, samples=task.samples,
                sampling=sampling, max_tokens=max_tokens, ks=ks, seed=seed, name=task.name, votes=True,
                store=SampleFile(Path(out) / "samples" / file_name(task.name, number)) if out is not None else None,
                progress=_named(progress, task.name),
            )  # fmt: skip
        result.seconds = time.perf_counter() - begin
        used = sorted({p.verifier or verifier for p in task.problems})
        result.settings = {**settings, "verifier": ", ".join(used), "deadline": f"{task.deadline:g} s"}
        results.append(result)
    suite = Suite(results)
    if out is not None:
        write_results(Path(out), suite.to_dict())
    return suite


def _task(
    source: Source, number: int, samples: tuple[int | None, int], deadline: float | None, keys: dict[str, Any]
) -> Task:
    """Read a source. samples: asked for, and where neither that nor a benchmark says."""
    from skpo.problems import load_problems
    from skpo.problems.benchmarks import parse

    if not isinstance(source, str):
        name = "problems" if number == 0 else f"problems {number + 1}"
        return Task(name, list(source)[: keys["limit"]], samples[0] or samples[1], deadline or DEADLINE)
    found = parse(source)
    problems = load_problems(source, **keys)
    if not problems:
        raise ConfigError(f"{source}: no problems.")
    if found is None:
        return Task(source, problems, samples[0] or samples[1], deadline or DEADLINE)
    benchmark = found[0]
    name = benchmark.name if not found[1] else source
    return Task(name, problems, samples[0] or benchmark.samples, deadline or benchmark.deadline)


def _named(progress: Callable[[str, int, int], None] | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)


def _identity(config: ModelConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """What the samples depend on besides the settings that are printed."""
    sources = {}
    for task in tasks:
        digest = hashlib.blake2b(digest_size=8)
        for p in task.problems:
            digest.update(f"{p.id}\x1f{p.prompt}\x1f{p.answer}\x1f{p.verifier}\x1e".encode("utf-8", "surrogatepass"))
        sources[task.name] = {
            "problems": len(task.problems), "digest": digest.hexdigest(), "samples": task.samples,
            "deadline": task.deadline,
        }  # fmt: skip
    rendering = config.model_dump(include={"prompt_template", "system_prompt", "chat", "dtype"})
    return {"sources": sources, "rendering": rendering}


def fingerprint(policy: LoadedPolicy) -> str:
    """A hash of the model's weights: 16 values spread over every tensor, in float32."""
    import torch

    digest = hashlib.blake2b(digest_size=8)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            flat = parameter.detach().reshape(-1)
            some = flat[:: max(1, flat.numel() // 16)][:17].to("cpu", torch.float32)
            digest.update(name.encode() + some.numpy().tobytes())
    return digest.hexdigest()
