"""Evaluation: k samples per problem; mean@k, unbiased pass@k and maj@k with bootstrap intervals over problems."""

from __future__ import annotations

from skpo.evaluation.api import evaluate, evaluate_all
from skpo.evaluation.result import Evaluation, Suite
from skpo.evaluation.run import run_evaluation
from skpo.evaluation.statistics import bootstrap_interval, maj_at_k, pass_at_k

__all__ = [
    "Evaluation",
    "Suite",
    "bootstrap_interval",
    "evaluate",
    "evaluate_all",
    "maj_at_k",
    "pass_at_k",
    "run_evaluation",
]
