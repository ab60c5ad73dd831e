"""Problems and their sources."""

from skpo.problems.base import Problem, problem_id

__all__ = ["Problem", "problem_id"]
