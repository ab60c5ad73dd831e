"""The policy-optimisation family: one file an algorithm, found by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from skpo.errors import ConfigError, unknown

if TYPE_CHECKING:
    from skpo.algorithms.base import Algorithm

#: name -> "module:class"; imported where it is used. `register` adds to it.
ALGORITHMS: dict[str, str | type[Algorithm]] = {
    "skpo": "skpo.algorithms.skpo:SKPO",
    "grpo": "skpo.algorithms.grpo:GRPO",
    "dr_grpo": "skpo.algorithms.dr_grpo:DrGRPO",
    "rloo": "skpo.algorithms.rloo:RLOO",
    "reinforce_pp": "skpo.algorithms.reinforce_pp:ReinforcePlusPlus",
    "dapo": "skpo.algorithms.dapo:DAPO",
    "gspo": "skpo.algorithms.gspo:GSPO",
    "gspo_token": "skpo.algorithms.gspo:GSPOToken",
    "cispo": "skpo.algorithms.cispo:CISPO",
    "sapo": "skpo.algorithms.sapo:SAPO",
    "spo": "skpo.algorithms.spo:SPO",
    "expo": "skpo.algorithms.expo:EXPO",
    "tepo": "skpo.algorithms.tepo:TEPO",
    "reco": "skpo.algorithms.reco:ReCo",
    "critique_grpo": "skpo.algorithms.critique_grpo:CritiqueGRPO",
    "ppo": "skpo.algorithms.ppo:PPO",
    "prime": "skpo.algorithms.prime:PRIME",
    "vsrm": "skpo.algorithms.vsrm:VSRM",
    "vineppo": "skpo.algorithms.vineppo:VinePPO",
}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class behind a name; an unknown name raises `ConfigError` with the known ones."""
    if name not in ALGORITHMS:
        raise ConfigError(unknown("algorithm", name, ALGORITHMS))
    entry = ALGORITHMS[name]
    if isinstance(entry, str):
        module, attribute = entry.split(":")
        entry = ALGORITHMS[name] = getattr(import_module(module), attribute)
    return entry


def get_algorithm(name: str, **options: Any) -> Algorithm:
    """An algorithm by name, with its options; unknown names and options raise `ConfigError` that lists the known ones."""
    return algorithm_class(name)(**options)


def register(cls: type[Algorithm]) -> type[Algorithm]:
    """Class decorator: make an algorithm of your own known by its `name`."""
    ALGORITHMS[cls.name] = cls
    return cls


def list_algorithms() -> list[type[Algorithm]]:
    """All algorithm classes, in the order of the table in the documentation."""
    return [algorithm_class(name) for name in list(ALGORITHMS)]
