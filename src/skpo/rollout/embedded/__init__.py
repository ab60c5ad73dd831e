"""The embedded engine: continuous batching in this process, on any Hugging Face causal language model."""

from skpo.rollout.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
