"""`skpo train`: a recipe plus overrides, a new run or one to go on with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skpo.errors import ConfigError, RunError

if TYPE_CHECKING:
    from skpo.config import TrainConfig
    from skpo.trainer import TrainResult

CONFIG = "config.yaml"  #: the settings a run folder keeps
ELSEWHERE = (
    "processes",
    "distributed",
    "process_timeout",
)  #: settings that a run may be gone on with under other values


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE|KEY=VALUE", help="A recipe (file or packaged name), then overrides."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Two steps on a tiny random model of the same kind, in RUN-dry-run.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="One plain line per step in place of the live panel.")] = False,
) -> None:
    """Train a model by a recipe.

    [bold]skpo train recipes/chain.yaml algorithm=grpo steps=200 out=runs/a[/bold] overrides settings of the recipe.

    [bold]skpo train --resume runs/a[/bold] goes on with a run that was stopped; so does the same command again. A finished run
    prints its result.
    """
    from skpo.trainer.processes import leave, rank

    config, going_on = read_settings(words or [], resume, dry_run)
    try:
        from skpo.trainer import Trainer

        result = Trainer(config, resume=going_on, dry_run=dry_run, quiet=quiet).train()
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; resume with skpo train --resume {config.out}", err=True)
        raise typer.Exit(130) from None
    if rank() == 0:
        for line in summary(result):
            typer.echo(line)
    leave()


def read_settings(words: list[str], resume: Path | None, dry_run: bool = False) -> tuple[TrainConfig, bool]:
    """(settings, whether to go on with the run in `config.out`).

    With `resume` and no recipe the settings are the run's own. Without `resume`, a folder that already holds a run
    of exactly these settings is gone on with. Raises RunError where it holds another run. A dry run is always new, and
    never touches the run's own folder.
    """
    from skpo.settings import load_config, validate_algorithm
    from skpo.trainer.processes import decided_by_first

    recipe, overrides = (words[0], words[1:]) if words and is_recipe(words[0]) else (None, words)
    if resume is not None:
        kept = resume / CONFIG
        if not kept.is_file():
            raise RunError(
                f"{resume}: no {CONFIG} there, so no run to go on with; start one: skpo train RECIPE out={resume}"
            )
        config = load_config(recipe or kept, [*overrides, f"out={resume}"])
        going_on = True
    elif recipe is None:
        raise ConfigError(
            "which recipe? skpo train RECIPE [KEY=VALUE]..., for example skpo train recipes/chain.yaml steps=10"
        )
    else:
        config = load_config(recipe, overrides)
        going_on = not dry_run and decided_by_first(config, lambda: same_run(config))
    validate_algorithm(config)
    return (decided_by_first(config, lambda: rehearsal(config)), False) if dry_run else (config, going_on)


def rehearsal(config: TrainConfig) -> TrainConfig:
    """The settings of a dry run: two short steps of few problems, in a folder of its own that an earlier dry run may have left.

    A random model never ends a response by itself, so budgets are what a dry run would take its time for.
    """
    out = config.out.with_name(f"{config.out.name}-dry-run")
    if (out / CONFIG).is_file():
        shutil.rmtree(out, ignore_errors=True)
    return config.model_copy(
        update={
            "out": out,
            "steps": min(config.steps, 2),
            "problems_per_step": min(config.problems_per_step, 2 * config.optimizer.mini_batches),
            "rollout": config.rollout.model_copy(
                update={"max_completion_tokens": min(config.rollout.max_completion_tokens, 64)}
            ),
            "eval": config.eval.model_copy(update={"samples": min(config.eval.samples, 2), "limit": 4}),
        }
    )


def is_recipe(word: str) -> bool:
    """True where a word names a recipe: it has no `=`, or is a file that happens to have one in its path."""
    return "=" not in word or Path(word).is_file()


def same_run(config: TrainConfig) -> bool:
    """False where `config.out` holds no run, True where it holds one of the same settings; RunError for another.

    The number of processes may differ: results don't depend on it.
    """
    from skpo.settings import load_config

    kept = config.out / CONFIG
    if not kept.is_file():
        return False
    old, new = flatten(load_config(kept).model_dump()), flatten(config.model_dump())
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key) and key not in ELSEWHERE]
    if differing:
        shown = ", ".join(f"{key} ({old.get(key)} there, {new.get(key)} now)" for key in differing[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise RunError(
            f"{config.out}: holds a run with other settings: {shown}{more}; choose another folder with out=FOLDER, "
            f"or go on with that run: skpo train --resume {config.out}"
        )
    return True


def flatten(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings with dotted keys."""
    flat: dict[str, object] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def summary(result: TrainResult) -> list[str]:
    """The lines printed after a run: where it is, and held-out pass@1 before and after."""
    lines = [f"run      {result.out} ({result.steps} steps)"]
    if result.before is not None:
        lines.append(f"before   held-out pass@1 {result.before:.3f}")
    if result.after is not None:
        best = f" (best {result.best:.3f})" if result.best is not None else ""
        lines.append(f"after    held-out pass@1 {result.after:.3f}{best}")
    return lines
