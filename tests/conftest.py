"""One thread, no network, and the model families that the engine and the trainer are tested on."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


@pytest.fixture(params=["llama", "qwen2", "qwen3", "gpt2"])
def family(request: pytest.FixtureRequest) -> str:
    """Name of a model family, for `support.tiny_model`."""
    return request.param
