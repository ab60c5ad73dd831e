"""Problems and their sources: files, Hugging Face datasets, reasoning-gym tasks, and the built-in chain."""

from skpo.problems.base import Message, Problem, problem_id

__all__ = ["Message", "Problem", "problem_id"]
