"""Rollouts on stock vLLM: `VLLMEngine`. vLLM itself is imported when an engine is made."""

from skpo.rollout.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
