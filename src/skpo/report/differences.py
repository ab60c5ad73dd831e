"""Settings of several runs side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG = "config.yaml"


def read_settings(folder: Path) -> dict[str, str]:
    """A run's settings with dotted keys, values as written in YAML; empty where there is no readable `config.yaml`."""
    import yaml

    path = folder / CONFIG
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return flatten(tree) if isinstance(tree, Mapping) else {}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings with dotted keys; lists and scalars as JSON without quotes around text."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def table(settings: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """One row per setting: `key`, `values` (one a run, None where a run lacks it), `differs`.

    `out` never counts as a difference: every run has its own.
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = []
    for key in keys:
        values = [one.get(key) for one in settings]
        rows.append({"key": key, "values": values, "differs": key != "out" and len(set(values)) > 1})
    return rows
