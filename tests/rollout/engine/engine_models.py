"""Tiny random models and plans that the engine's tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from skpo.rollout.embedded import EmbeddedEngine
from skpo.rollout.types import Group, Plan, PlanRun, Problem, Request, Sample, Sampling

FAMILIES = ("llama", "llama-tied", "qwen2", "qwen3", "gpt2")
VOCAB = 99
PROBLEM = Problem("q", "a")


def build(family: str, seed: int = 0) -> Any:
    """A random model of two layers, in evaluation mode, with weights large enough that its distributions are uneven."""
    import transformers as tf

    torch.manual_seed(seed)
    name, _, variant = family.partition("-")
    if name == "gpt2":
        config: Any = tf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    else:
        kind = {"llama": tf.LlamaConfig, "qwen2": tf.Qwen2Config, "qwen3": tf.Qwen3Config, "mistral": tf.MistralConfig}
        more: dict[str, Any] = {"tie_word_embeddings": variant == "tied"}
        if name == "qwen3":
            more["head_dim"] = 16
        if variant == "scaled":  # Llama 3's rotary scaling, and biases
            scaling = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            more["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 1e4, **scaling}
            more["rope_parameters"]["original_max_position_embeddings"] = 32
            more |= {"attention_bias": True, "mlp_bias": True}
        if variant == "sliding":
            more |= {"sliding_window": 9}
            if name == "qwen2":
                more |= {"use_sliding_window": True, "max_window_layers": 1}
        config = kind[name](
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.15,
            **more,
        )
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.1 * torch.randn_like(p))  # norms and biases that do something
        if name == "gpt2":
            for p in model.parameters():
                p.mul_(4)
    return model


def two_stage(context: tuple[int, ...], n: int, tokens: int, sampling: Sampling = Sampling()) -> Plan:
    """As SKPO rolls out: n segments, then n completions of [segment, context]."""
    segments = yield Request(context, n, tokens // 2, sampling)
    chosen = tuple(segments[n // 2].tokens.tolist())
    completions = yield Request(chosen + context, n, tokens, sampling)
    return Group(PROBLEM, completions, segments)


def one_stage(context: tuple[int, ...], n: int, tokens: int) -> Plan:
    """As group sampling rolls out."""
    samples = yield Request(context, n, tokens)
    return Group(PROBLEM, samples)


def run_plans(engine: EmbeddedEngine, plans: Iterable[Plan]) -> list[Group]:
    """Run plans with seeds 0, 1, ...; groups in the plans' order."""
    found = dict(engine.run(PlanRun(plan, seed) for seed, plan in enumerate(plans)))
    return [found[i] for i in range(len(found))]


def as_lists(groups: Iterable[Group]) -> list[list[list[int]]]:
    """Tokens of all samples."""
    return [[s.tokens.tolist() for s in [*g.samples, *g.unused]] for g in groups]


def check_samples(model: Any, samples: Sequence[Sample], sampling: Sampling = Sampling()) -> float:
    """Largest difference between the samples' log-probabilities and those of one plain forward for each sample."""
    worst = 0.0
    for s in samples:
        with torch.no_grad():
            logits = model(torch.tensor([[*s.context, *s.tokens.tolist()]])).logits[0].float()
        rows = plain_truncation(logits[len(s.context) - 1 : -1], sampling)
        logp = rows.log_softmax(-1).gather(1, torch.from_numpy(s.tokens)[:, None])[:, 0]
        worst = max(worst, float((logp - torch.from_numpy(s.logp)).abs().max()))
    return worst


def plain_truncation(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Temperature, top-k and top-p on [T, V] logits, one row at a time: the slow twin of `skpo.rollout.sampling`."""
    rows = []
    for row in logits:
        if sampling.temperature == 0:
            rows.append(torch.where(torch.arange(len(row)) == row.argmax(), 0.0, -torch.inf))
            continue
        row = row / sampling.temperature
        order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))
        kept = order[: sampling.top_k or len(order)]
        probs = row[kept].double().softmax(0)
        if sampling.top_p < 1:
            reached, keep = 0.0, 0
            while reached < sampling.top_p and keep < len(kept):
                reached, keep = reached + float(probs[keep]), keep + 1
            kept = kept[:keep]
        cut = torch.full_like(row, -torch.inf)
        cut[kept] = row[kept]
        rows.append(cut)
    return torch.stack(rows)
