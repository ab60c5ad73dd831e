"""Problems and their sources: files, Hugging Face datasets, reasoning-gym tasks, and the built-in chain."""

from skpo.problems.base import Message, Problem, problem_id
from skpo.problems.sources import load_problems

__all__ = ["Message", "Problem", "load_problems", "problem_id"]
