"""What the analyses of a model share: the loaded model with its engine and verifiers, and what was sampled on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo.config import ModelConfig
from skpo.errors import ConfigError, RunError
from skpo.rollout.plans import PlanContext
from skpo.rollout.types import Group, Plan, PlanRun, Sampling, derive_seed

if TYPE_CHECKING:
    from skpo.policy.prompts import PromptRenderer
    from skpo.problems.base import Problem
    from skpo.rollout.types import Engine
    from skpo.trainer.judge import Judge

Told = Callable[[str], None]


@dataclass
class Lab:
    """A model that can be sampled from and judged. weights: hash of its weights. positions: most tokens that it has."""

    engine: Engine
    renderer: PromptRenderer
    judge: Judge
    max_tokens: int
    sampling: Sampling
    seed: int
    weights: str
    positions: int | None = None

    def context(self, n: int, key: str) -> PlanContext:
        """What a plan is given; its own draws depend on the seed and `key` alone."""
        import numpy as np

        rng = np.random.default_rng(derive_seed(self.seed, "analysis", key))
        return PlanContext(self.renderer, n, self.max_tokens, self.sampling, rng=rng, positions=self.positions)

    def room(self, context: Sequence[int], used: int = 0) -> int:
        """Tokens that may follow a context of which `used` already belong to the response."""
        room = self.max_tokens - used
        return room if self.positions is None else min(room, self.positions - len(context))

    def run(self, plans: Mapping[str, Plan]) -> Iterator[tuple[str, Group]]:
        """Run plans, each under a key that its samples' seeds come from; yields groups with all verdicts in."""
        keys = list(plans)
        runs = [PlanRun(plans[key], derive_seed(self.seed, "analysis", key)) for key in keys]
        for index, group in self.engine.run(runs):
            self.judge.submit(group)
            self.judge.finish()
            yield keys[index], group


@contextmanager
def open_lab(
    model: str,
    problems: Sequence[Problem],
    *,
    verifier: str = "math",
    temperature: float = 1.0,
    max_tokens: int = 1024,
    skip_template: str | None = None,
    seed: int = 0,
    slots: int = 256,
) -> Iterator[Lab]:
    """Load a model, its engine and a verifier pool for the problems."""
    from skpo.evaluation.api import fingerprint
    from skpo.policy.loading import load_policy
    from skpo.policy.prompts import PromptRenderer
    from skpo.rollout.embedded import EmbeddedEngine
    from skpo.trainer.judge import Judge
    from skpo.verifiers.pool import VerifierPool

    with VerifierPool() as pool:
        pool.require({p.verifier or verifier for p in problems})
        config = ModelConfig(path=model, skip_template=skip_template)
        policy = load_policy(config)
        renderer = PromptRenderer(policy.tokenizer, config, policy.chat)
        yield Lab(
            EmbeddedEngine(policy.model, eos_ids=policy.eos_ids, slots=slots),
            renderer,
            Judge(pool, renderer.decode, verifier),
            max_tokens,
            Sampling(temperature),
            seed,
            fingerprint(policy),
            getattr(policy.model.config, "max_position_embeddings", None),
        )


def digest(*parts: Any) -> str:
    """A key for anything that JSON can write: 16 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Records:
    """JSON lines under keys, on disk as soon as they are known; the first line holds what they depend on.

    settings: None for a file in which keys say all. Raises RunError for a file made with other settings. A last line
    that a kill cut short is dropped.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.path, self.found = path, dict[str, Any]()
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = b""
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                continue
            if line.endswith(b"\n"):
                self.found[key], whole = value, whole + line
        if path.exists() and len(whole) != path.stat().st_size:
            new = path.with_name(f"{path.name}.new")
            new.write_bytes(whole)
            new.replace(path)
        self._check(None if settings is None else json.loads(json.dumps(settings, default=str)))

    def _check(self, settings: Any) -> None:
        before = self.found.pop("settings", None)
        if settings is None or before == settings:
            return
        if before is not None or self.found:
            changed = [k for k in settings if (before or {}).get(k) != settings[k]]
            raise RunError(f"{self.path} was made with another {', '.join(changed)}. Use another --out folder.")
        self.add("settings", settings)
        del self.found["settings"]

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def __getitem__(self, key: str) -> Any:
        return self.found[key]

    def add(self, key: str, value: Any) -> None:
        """Append one record; on disk when this returns."""
        with self.path.open("ab") as file:
            file.write(json.dumps([key, value], ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.found[key] = value


def problems_of(sources: Sequence[str], limit: int | None, verifier: str) -> list[Problem]:
    """Problems of several sources, `limit` of each, without repetitions. Raises ConfigError where there are none."""
    from skpo.problems import load_problems

    found = {p.id: p for source in sources for p in load_problems(source, verifier=verifier, limit=limit)}
    if not found:
        raise ConfigError(f"{', '.join(sources)}: no problems")
    return list(found.values())
