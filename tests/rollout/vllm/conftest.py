"""Tests that run vLLM itself; left out only where it isn't installed."""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_vllm_*.py"]
os.environ.setdefault(
    "TORCHDYNAMO_DISABLE", "1"
)  # vLLM compiles a few small functions, which takes longer than the tests


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
