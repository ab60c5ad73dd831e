"""What each metric means: the section of the page it stands in, its title, and one line of help."""

from __future__ import annotations

SECTIONS = ("Outcome", "Lengths", "Policy", "Optimisation", "Segments", "Held-out", "Time and cost", "Workers", "Other")

_KNOWN: dict[str, tuple[str, str, str]] = {
    "reward_mean": ("Outcome", "reward, mean", "mean reward of the step's completions"),
    "accuracy": ("Outcome", "accuracy", "share of completions that are fully correct"),
    "pass_at_1": ("Outcome", "pass@1", "share correct within a problem, averaged over problems"),
    "pass_at_g": ("Outcome", "pass@G", "share of problems that one of their completions solves"),
    "advantage_zero_rate": (
        "Outcome",
        "advantage-zero rate",
        "share of problems whose completions all have one reward",
    ),
    "completion_length": ("Lengths", "completion length", "tokens of a completion, mean"),
    "completion_length_max": ("Lengths", "completion length, longest", "tokens of the step's longest completion"),
    "finished_rate": ("Lengths", "finished", "share of completions that ended by themselves"),
    "segment_length": ("Lengths", "segment length", "tokens of a chosen segment, mean"),
    "stop_position": ("Lengths", "stop position", "where segments are stopped, in tokens, mean"),
    "split_position": ("Lengths", "split position", "stop position as a share of the problem's usual length"),
    "entropy": ("Policy", "entropy", "of the policy, nats per trained token"),
    "kl_old": ("Policy", "KL to the behaviour policy", "estimate, nats per trained token"),
    "kl_ref": ("Policy", "KL to the reference policy", "estimate, nats per trained token"),
    "ratio_max": ("Policy", "ratio, largest", "pi / pi_old over the step's tokens"),
    "ratio_min": ("Policy", "ratio, smallest", "pi / pi_old over the step's tokens"),
    "logp_deviation": (
        "Policy",
        "log-probability deviation",
        "largest difference of trainer and engine before an update",
    ),
    "clip_fraction": ("Policy", "clipped", "share of tokens whose ratio is clipped"),
    "clip_fraction_upstream": ("Policy", "clipped, upstream", "share of segment tokens whose ratio is clipped"),
    "loss": ("Optimisation", "loss", "mean over the step's optimiser steps"),
    "loss_upstream": ("Optimisation", "loss, upstream", "the segments' part"),
    "loss_downstream": ("Optimisation", "loss, downstream", "the completions' part"),
    "grad_norm": ("Optimisation", "gradient norm", "before clipping, mean over optimiser steps"),
    "lr": ("Optimisation", "learning rate", "at the end of the step"),
    "skipped_steps": ("Optimisation", "skipped optimiser steps", "left out for non-finite numbers, in the whole run"),
    "skipped_in_a_row": ("Optimisation", "skipped in a row", "optimiser steps left out one after the other"),
    "tokens_trained": ("Optimisation", "tokens trained", "in the step"),
    "nonfinite_values": ("Optimisation", "non-finite values", "metrics of the step that were NaN or infinite"),
    "segment_reward": ("Segments", "segment reward", "mean reward of the completions that follow a segment"),
    "segment_baseline": ("Segments", "segment baseline", "the value tracker's guess before the step"),
    "upstream_reliability": ("Segments", "upstream reliability", "spread of segment advantages beyond their own noise"),
    "chosen_rank": ("Segments", "rank of the chosen segment", "by likelihood, from 0, mean"),
    "problems_tracked": ("Segments", "problems tracked", "problems that have a value by now"),
    "eval_pass_at_1": ("Held-out", "held-out pass@1", "mean accuracy on held-out problems"),
    "eval_pass_at_1_stderr": ("Held-out", "held-out pass@1, standard error", "over problems"),
    "eval_pass_at_k": ("Held-out", "held-out pass@k", "share solved by one of k samples, unbiased"),
    "eval_length": ("Held-out", "held-out length", "tokens of a held-out sample, mean"),
    "seconds": ("Time and cost", "seconds per step", "evaluation left out"),
    "tokens_per_second": ("Time and cost", "tokens per second", "generated tokens over the step's seconds"),
    "tokens_generated": ("Time and cost", "tokens generated", "in the step"),
    "tokens_prefilled": ("Time and cost", "tokens prefilled", "prompt tokens computed in the step"),
    "tokens_trained_total": ("Time and cost", "tokens trained, total", "in the whole run"),
    "seconds_rollout": ("Time and cost", "seconds, rollout", "sampling"),
    "seconds_verify": ("Time and cost", "seconds, verify", "waiting for verdicts"),
    "seconds_train": ("Time and cost", "seconds, train", "observing and optimising"),
    "seconds_other": ("Time and cost", "seconds, other", "scoring, advantages, logging"),
    "eval_seconds": ("Time and cost", "seconds, evaluation", "of each evaluation"),
    "slots_busy": ("Time and cost", "slots busy", "rows of the engine's batch that were in use, mean"),
    "slots_computed": (
        "Time and cost",
        "slots computed",
        "rows computed in a decode step, mean; rows that are alike so far share",
    ),
    "engine_steps": ("Time and cost", "engine steps", "decode steps in the step, of all workers"),
    "version_lag": (
        "Workers",
        "version lag",
        "weight versions by which trained samples are older than the policy, mean",
    ),
    "workers": ("Workers", "workers", "rollout workers that were there at the end of the rollouts"),
    "worker_deaths": ("Workers", "workers that died", "in the step"),
    "plans_repeated": ("Workers", "problems repeated", "unfinished ones of workers that died"),
    "weights_bytes": ("Workers", "weights sent", "bytes put into the object store"),
    "seconds_weights": ("Workers", "seconds, weights", "giving the engine new weights (vLLM: and proving it)"),
    "probe_deviation": ("Workers", "probe deviation", "largest difference of trainer and engine on fixed rows, nats"),
}
_HIDDEN = {"eval_best", "eval_k"}
_PREFIXES = (
    ("eval_", "Held-out"), ("segment", "Segments"), ("seconds", "Time and cost"), ("loss", "Optimisation"),
    ("kl", "Policy"), ("clip", "Policy"), ("ratio", "Policy"), ("entropy", "Policy"), ("critic", "Optimisation"),
    ("verify_failures", "Outcome"),
)  # fmt: skip


def describe(name: str) -> dict[str, str] | None:
    """`name`, `section`, `title` and `help` of a metric; an unknown one is named by its key. None: not worth a curve."""
    if name in _HIDDEN:
        return None
    if name in _KNOWN:
        section, title, text = _KNOWN[name]
    else:
        section = next((place for start, place in _PREFIXES if name.startswith(start)), "Other")
        title, text = name.replace("_", " "), ""
    return {"name": name, "section": section, "title": title, "help": text}


def in_order(names: set[str]) -> list[dict[str, str]]:
    """Descriptions of these metrics, by section, known ones first in the order above, then by name."""
    known = {name: i for i, name in enumerate(_KNOWN)}
    found = [d for d in map(describe, names) if d is not None]
    return sorted(found, key=lambda d: (SECTIONS.index(d["section"]), known.get(d["name"], len(known)), d["name"]))
