"""Builds what a run works with: policy, engine, verifiers, problems, optimiser."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from skpo.algorithms.base import Algorithm
from skpo.config import OptimizerConfig, TrainConfig
from skpo.errors import ConfigError, ProblemError
from skpo.policy.auxiliary import Auxiliary, AuxiliaryContext
from skpo.policy.loading import LoadedPolicy, load_policy
from skpo.policy.prompts import PromptRenderer
from skpo.policy.scoring import ScoringModel
from skpo.problems import load_problems
from skpo.problems.base import Problem
from skpo.rollout.engines import build_engine
from skpo.rollout.types import Engine, Sampling
from skpo.trainer.processes import copy_whole, layer_names, make_accelerator
from skpo.trainer.update import Updater
from skpo.verifiers.pool import VerifierPool

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class Parts:
    """Everything that a run's loop uses. model: the prepared `ScoringModel`; recompute: score behaviour log-probabilities again.

    policy: what is sampled from and saved, whole in every process. It is trained itself, except with FSDP2, where a sharded twin is.
    """

    accelerator: Accelerator
    policy: LoadedPolicy
    renderer: PromptRenderer
    model: torch.nn.Module
    engine: Engine
    pool: VerifierPool
    updater: Updater
    problems: list[Problem]
    heldout: list[Problem]
    sampling: Sampling
    recompute: bool
    reference_model: torch.nn.Module | None = None
    auxiliary: Auxiliary | None = None
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def reference(self) -> Iterator[torch.nn.Module]:
        """The frozen starting policy as a scoring model: a copy, or this model with its adapters off."""
        if self.reference_model is not None:
            yield self.reference_model
        else:
            with self.trained.disable_adapter():
                yield self.model

    @property
    def trained(self) -> Any:
        """The language model inside `model`: the policy itself, or its sharded twin."""
        return self.accelerator.unwrap_model(self.model).model

    def gather_weights(self) -> None:
        """Bring the policy up to date with what was trained, where that is another, sharded copy. All processes call it."""
        if self.trained is not self.policy.model:
            copy_whole(self.trained, self.policy.model)

    def close(self) -> None:
        """End workers and free the engine."""
        self.engine.close()
        self.pool.close()


def build_parts(
    config: TrainConfig,
    algorithm: Algorithm,
    *,
    resume_from: Path | None = None,
    dry_run: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Parts:
    """Load and wire everything. `resume_from`: a checkpoint whose weights replace the recipe's starting model. `tell`: takes
    what the engine has to say while it runs."""
    accelerator = make_accelerator(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if resume_from is not None:
        start = config.model.model_copy(update={"path": str(resume_from / "model")})
        policy = load_policy(start, seed=config.seed)
    else:
        policy = load_policy(config.model, dry_run=dry_run, seed=config.seed)
    trained = policy.model
    if accelerator.is_fsdp2:
        trained = copy.deepcopy(policy.model)
        accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = layer_names(trained)
    if config.optimizer.gradient_checkpointing:
        if config.model.lora is not None:  # else nothing before the first adapter has a gradient to recompute for
            trained.enable_input_require_grads()
        trained.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained.train()  # dropout is off; gradient checkpointing works in training mode only
    policy.model.to(accelerator.device)
    renderer = PromptRenderer(policy.tokenizer, config.model, policy.chat)
    problems, heldout, notes = read_problems(config, renderer, dry_run)
    scoring = scoring_model(trained, config)
    scoring.in_place = accelerator.num_processes == 1
    optimizer = torch.optim.AdamW(
        [p for p in trained.parameters() if p.requires_grad],
        lr=config.optimizer.lr, betas=config.optimizer.betas, eps=config.optimizer.eps, weight_decay=config.optimizer.weight_decay,
    )  # fmt: skip
    updates = config.steps * config.optimizer.mini_batches * config.optimizer.epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(config.optimizer, updates))
    model, optimizer = accelerator.prepare(scoring, optimizer)
    sampling = Sampling(config.rollout.temperature, config.rollout.top_p, config.rollout.top_k)
    return Parts(
        accelerator=accelerator,
        policy=policy,
        renderer=renderer,
        model=model,
        engine=engine_of(config, policy, accelerator, dry_run, tell),
        pool=verifier_pool(config, [*problems, *heldout]),
        updater=Updater(accelerator, model, optimizer, scheduler, config.optimizer, algorithm, config.seed),
        problems=problems,
        heldout=heldout,
        sampling=sampling,
        recompute=must_recompute(config, sampling, accelerator.device),
        reference_model=reference_model(config, algorithm, accelerator, dry_run),
        auxiliary=auxiliary_model(config, algorithm, accelerator, policy, updates, dry_run),
        notes=[*policy.notes, *notes, *padded_notes(scoring, config)],
    )


def engine_of(
    config: TrainConfig,
    policy: LoadedPolicy,
    accelerator: Accelerator,
    dry_run: bool,
    tell: Callable[[str], None] | None,
) -> Engine:
    """This process's rollout engine. Of several processes the first has the workers of `engine=ray`."""
    if config.rollout.engine == "ray" and not accelerator.is_main_process:
        from skpo.rollout.ray.elsewhere import Elsewhere

        return Elsewhere()
    return build_engine(config, policy, accelerator.device, dry_run=dry_run, tell=tell)


def verifier_pool(config: TrainConfig, problems: list[Problem]) -> VerifierPool:
    """The run's verifiers. Raises VerifierError where one that a problem names must not run on this machine."""
    v = config.verify
    pool = VerifierPool(v.workers, v.deadline, v.memory_mb, v.unsafe_code)
    pool.require({p.verifier or config.problems.verifier for p in problems})
    return pool


def correction(config: TrainConfig) -> Literal["tis", "mis", "icepop"] | None:
    """The sampler-trainer correction; `auto` is truncated importance sampling for rollouts a step ahead, and none otherwise."""
    chosen = config.optimizer.correction
    return ("tis" if config.rollout.ahead else None) if chosen == "auto" else chosen


def must_recompute(config: TrainConfig, sampling: Sampling, device: torch.device) -> bool:
    """Whether the trainer scores behaviour log-probabilities itself: where the engine's belong to a truncated distribution, come from
    another precision, or are to be corrected for. vLLM's kernels on a GPU round in another way than the trainer's in any precision."""
    if correction(config) is not None:
        if config.optimizer.old_logp == "engine":
            raise ConfigError(
                "optimizer.correction (auto with rollout.ahead=1, too) compares the engine with the trainer; it needs old_logp=auto or "
                "recompute"
            )
        return True
    if config.optimizer.old_logp == "auto":
        r = config.rollout
        gpus = device.type != "cpu" or (r.engine == "ray" and r.ray.gpus > 0)
        vllm = "vllm" in (r.engine, r.ray.engine if r.engine == "ray" else "") and (
            gpus or r.vllm.dtype not in ("auto", config.model.dtype)
        )
        float32 = config.optimizer.precision == "fp32" and config.model.dtype == "float32"
        return sampling.truncated or vllm or not float32
    if config.optimizer.old_logp == "engine" and sampling.truncated:
        raise ConfigError(
            "optimizer.old_logp=engine needs rollout.top_p=1 and rollout.top_k=0: the trainer scores under the whole softmax, the "
            "engine's log-probabilities would be of a truncated one. Use optimizer.old_logp=auto."
        )
    return config.optimizer.old_logp == "recompute"


def reference_model(
    config: TrainConfig, algorithm: Algorithm, accelerator: Accelerator, dry_run: bool
) -> torch.nn.Module | None:
    """A frozen copy of the *starting* policy, where the algorithm needs one and no adapters can be switched off for it."""
    if not algorithm.needs_reference or config.model.lora is not None:
        return None
    start = load_policy(config.model, dry_run=dry_run, seed=config.seed).model.to(accelerator.device)
    start.requires_grad_(False)
    return scoring_model(start.eval(), config)


def padded_notes(scoring: ScoringModel, config: TrainConfig) -> list[str]:
    """Says where rows could not share prompts although the recipe leaves it to the model."""
    if config.optimizer.shared_prefix != "auto" or scoring.padded_because is None:
        return []
    return [
        f"training pass: every row computes its own prompt, since this model's can't be shared: {scoring.padded_because}"
    ]


def scoring_model(model: torch.nn.Module, config: TrainConfig) -> ScoringModel:
    """A model as the recipe's trainer scores rows with it."""
    o = config.optimizer
    return ScoringModel(model, temperature=config.rollout.temperature, chunk=o.logit_chunk, share=o.shared_prefix)


def auxiliary_model(
    config: TrainConfig,
    algorithm: Algorithm,
    accelerator: Accelerator,
    policy: LoadedPolicy,
    updates: int,
    dry_run: bool,
) -> Auxiliary | None:
    """The algorithm's own model beside the policy; copies of the *starting* policy for it are set up as the policy is."""

    def make_model() -> torch.nn.Module:
        model = load_policy(config.model, dry_run=dry_run, seed=config.seed).model
        if config.optimizer.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model.train()

    return algorithm.auxiliary(
        AuxiliaryContext(
            accelerator, make_model, policy.model, config.rollout.temperature,
            config.optimizer, schedule(config.optimizer, updates), config.seed,
        )
    )  # fmt: skip


def read_problems(
    config: TrainConfig, renderer: PromptRenderer, dry_run: bool = False
) -> tuple[list[Problem], list[Problem], list[str]]:
    """(training problems, held-out problems, notes). Raises ConfigError where the two share a problem."""
    c, notes = config.problems, []
    keys: dict[str, Any] = {"prompt_key": c.prompt_key, "answer_key": c.answer_key, "verifier": c.verifier}
    try:
        problems = load_problems(c.train, limit=c.limit, **keys)
    except ProblemError as error:
        if not (dry_run and c.train.startswith("hf:")):
            raise
        notes.append(f"dry run: {error} Chain problems stand in for it.")
        problems = load_problems("builtin:chain?size=64")
    if c.max_prompt_tokens is not None:
        short = [p for p in problems if len(renderer.prompt_ids(p)) <= c.max_prompt_tokens]
        if len(short) < len(problems):
            notes.append(
                f"{len(problems) - len(short)} of {len(problems)} training problems left out: prompt over {c.max_prompt_tokens} tokens"
            )
        problems = short
    heldout = load_problems(c.heldout, limit=config.eval.limit, **keys) if c.heldout else []
    shared = {p.text for p in problems} & {p.text for p in heldout}
    if shared:
        raise ConfigError(
            f"{len(shared)} problems are both in problems.train and in problems.heldout, one of them: {min(shared)[:80]!r}"
        )
    return problems, heldout, notes


def schedule(config: OptimizerConfig, updates: int) -> Callable[[int], float]:
    """Factor on the learning rate at an optimiser step: linear warm-up, then constant, linear to 0 or a half cosine to 0."""

    def factor(update: int) -> float:
        if update < config.warmup_steps:
            return (update + 1) / config.warmup_steps
        if config.schedule == "constant":
            return 1.0
        progress = min(1.0, (update - config.warmup_steps) / max(1, updates - config.warmup_steps))
        return 1 - progress if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))

    return factor
