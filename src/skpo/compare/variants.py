"""What is compared: an algorithm with options and settings, under a name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skpo.config import TrainConfig
from skpo.errors import ConfigError


@dataclass(frozen=True)
class Variant:
    """name: as the user wrote it; overrides: `key=value` on top of the recipe; folder: its name on disk."""

    name: str
    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        return re.sub(r"[^A-Za-z0-9_.=-]+", "_", self.name)


def parse_variants(text: str, recipe_algorithm: str = "") -> list[Variant]:
    """Variants of a comma-separated list: `skpo,grpo,skpo:skip=false,spo:problems_per_step=256`.

    After the algorithm's name, `:key=value` sets one of its options, or a setting of the recipe where the key is one
    (`curriculum`, `problems_per_step`, `optimizer.lr`, ...). The recipe's own algorithm named without options keeps the
    recipe's options. Raises ConfigError for an empty list, a repeated variant, or a piece that isn't `key=value`.
    """
    variants = []
    for entry in filter(None, (piece.strip() for piece in text.split(","))):
        algorithm, *settings = entry.split(":")
        overrides = [] if algorithm == recipe_algorithm else [f"algorithm={algorithm}"]
        for setting in settings:
            key, equals, _ = setting.partition("=")
            if not equals:
                raise ConfigError(f'"{entry}": "{setting}" is not KEY=VALUE; write for example skpo:skip=false')
            known = key.split(".")[0] in TrainConfig.model_fields
            overrides.append(setting if known else f"algorithm.{setting}")
        variants.append(Variant(entry, tuple(overrides)))
    if not variants:
        raise ConfigError("nothing to compare; name algorithms, for example --algorithms skpo,grpo")
    names = [v.name for v in variants]
    if repeated := {n for n in names if names.count(n) > 1}:
        raise ConfigError(f"named twice: {', '.join(sorted(repeated))}")
    return variants
