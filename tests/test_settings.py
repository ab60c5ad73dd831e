"""Recipes, overrides, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skpo.config import TrainConfig
from skpo.errors import ConfigError
from skpo.settings import RECIPES, SHORTHANDS, allowed, dump_config, field_at, find_recipe, iter_fields, load_config

MINIMAL = {"model": {"path": "m"}, "problems": {"train": "p.jsonl"}}


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["chain", "chain.yaml", "recipes/chain.yaml"])
def test_packaged_recipe_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name) == RECIPES / "chain.yaml"


def test_a_file_wins_over_a_packaged_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.yaml").write_text("model: mine\nproblems: {train: p.jsonl}\n")
    assert load_config("chain.yaml").model.path == "mine"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_loads_and_survives_a_round_trip(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert load_config(recipe(tmp_path, dump_config(config))) == config


def test_recipes_at_the_root_are_the_packaged_ones() -> None:
    root = Path(__file__).parent.parent / "recipes"
    assert root.resolve() == RECIPES.resolve()


def test_published_setting_is_the_papers() -> None:
    """arXiv 2604.08690, appendix C: 128 problems in 4 mini-batches of 32, G = 8, AdamW 1e-6, prompt 1024, completion 3072."""
    config = load_config("qwen_math_7b")
    optimizer = config.optimizer
    assert (config.steps, config.problems_per_step, config.group_size, optimizer.mini_batches) == (500, 128, 8, 4)
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.weight_decay) == (1e-6, 10, 0.1)
    assert (optimizer.betas, optimizer.max_grad_norm, optimizer.precision) == ((0.9, 0.999), 1.0, "bf16")
    assert (config.problems.max_prompt_tokens, config.rollout.max_completion_tokens) == (1024, 3072)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("steps=7", "steps", 7),
        ("rollout.temperature=0.8", "rollout.temperature", 0.8),
        ("optimizer.lr=1e-6", "optimizer.lr", 1e-6),  # YAML 1.1 reads 1e-6 as text
        ("lr=2.5E-4", "optimizer.lr", 2.5e-4),
        ("engine=embedded", "rollout.engine", "embedded"),
        ("model=other", "model.path", "other"),
        ("model=2024", "model.path", "2024"),  # text settings take the text as it stands
        ("model.skip_template={segment}|{problem}", "model.skip_template", "{segment}|{problem}"),
        ("model.prompt_template={prompt}", "model.prompt_template", "{prompt}"),
        ("problems.train=gym:gcd?max=30&size=4", "problems.train", "gym:gcd?max=30&size=4"),
        ("problems.limit=null", "problems.limit", None),
        ("model.lora.r=4", "model.lora.r", 4),
        ("model.lora.target_modules=[q_proj, v_proj]", "model.lora.target_modules", ["q_proj", "v_proj"]),
        ("optimizer.betas=[0.8, 0.9]", "optimizer.betas", (0.8, 0.9)),
        ("out=runs/a b", "out", Path("runs/a b")),
        ("algorithm=grpo", "algorithm", {"name": "grpo"}),
        ("algorithm={name: dapo, clip_high: 3e-1}", "algorithm", {"name": "dapo", "clip_high": 0.3}),
        ("algorithm.skip=false", "algorithm", {"name": "skpo", "skip": False}),
        ("algorithm.clip_low=3e-4", "algorithm", {"name": "skpo", "clip_low": 3e-4}),
    ],
)
def test_override(override: str, key: str, value: Any) -> None:
    found: Any = load_config(None, [override], base=MINIMAL)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_a_new_algorithm_drops_the_old_options(tmp_path: Path) -> None:
    path = recipe(tmp_path, "model: m\nproblems: {train: p}\nalgorithm: {name: skpo, upstream_weight: reliability}\n")
    assert load_config(path, ["algorithm.skip=false"]).algorithm == {
        "name": "skpo",
        "upstream_weight": "reliability",
        "skip": False,
    }
    assert load_config(path, ["algorithm=grpo", "algorithm.beta=0.1"]).algorithm == {"name": "grpo", "beta": 0.1}


def test_layers_base_recipe_overrides(tmp_path: Path) -> None:
    base = TrainConfig.model_validate({**MINIMAL, "steps": 1, "seed": 1, "group_size": 2}).model_dump()
    config = load_config(recipe(tmp_path, "steps: 2\nseed: 2\n"), ["steps=3"], base=base)
    assert (config.steps, config.seed, config.group_size, config.model.path) == (3, 2, 2, "m")


def test_round_trip_of_awkward_values(tmp_path: Path) -> None:
    config = TrainConfig.model_validate(
        {
            "model": {"path": "1e-6", "prompt_template": "{prompt}: yes\n", "lora": {"target_modules": ["q", "v"]}},
            "problems": {"train": "no", "prompt_key": "on"},
            "algorithm": {"name": "gspo", "clip_low": 3e-4, "clip_high": float("inf")},
            "optimizer": {"lr": 1e-7, "betas": (0.5, 0.75)},
            "out": Path("runs/a: b"),
        }
    )
    assert load_config(recipe(tmp_path, dump_config(config))) == config


WRONG_OVERRIDES = {
    "optimizer.lrr=1": 'override "optimizer.lrr=1": unknown key "optimizer.lrr"; did you mean "optimizer.lr"?',
    "temperature=1": 'override "temperature=1": unknown key "temperature"; '
    'did you mean "rollout.temperature" or "eval.temperature"?',
    "groupsize=4": 'override "groupsize=4": unknown key "groupsize"; did you mean "group_size"?',
    "model.lora.rank=3": 'override "model.lora.rank=3": unknown key "model.lora.rank"; '
    "known in model.lora: r, alpha, target_modules",
    "checkpoint.zzz=1": 'override "checkpoint.zzz=1": unknown key "checkpoint.zzz"; known in checkpoint: every, keep',
    "steps": 'override "steps": expected key=value, for example steps=200 or rollout.temperature=0.8',
    "steps=1.5": 'override "steps=1.5": steps = 1.5 is not allowed; expected a whole number of at least 0',
    "rollout.top_p=2": 'override "rollout.top_p=2": rollout.top_p = 2 is not allowed; '
    "expected a number greater than 0 and at most 1",
    "engine=foo": "override \"engine=foo\": rollout.engine = 'foo' is not allowed; expected embedded | vllm | ray",
    "threads=0": 'override "threads=0": threads = 0 is not allowed; expected a whole number of at least 1, or null',
    "optimizer.betas=[1]": 'override "optimizer.betas=[1]": optimizer.betas = [1] is not allowed; '
    "expected a list of 2 numbers",
    "model.lora=3": 'override "model.lora=3": model.lora = 3 is not allowed; '
    "expected a mapping with r, alpha, target_modules, or null",
    "algorithm={clip_low: 1}": 'override "algorithm={clip_low: 1}": algorithm.name = None is not allowed; '
    "expected one of `skpo algorithms`",
    "optimizer.mini_batches=200": "optimizer.mini_batches = 200 is more than problems_per_step = 128; "
    "every mini-batch needs at least one problem",
}


@pytest.mark.parametrize("override", WRONG_OVERRIDES)
def test_wrong_override_is_explained(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override], base=MINIMAL)
    assert str(caught.value) == WRONG_OVERRIDES[override]


WRONG_FILES = {
    "model: m\nproblems: {train: p}\noptimizer:\n  lr: 1\n  lr: 2\n": ':5: "optimizer.lr" is given twice '
    "(first in line 4); keep one",
    "- 1\n": ": holds no settings: expected `key: value` lines",
    "steps: [\n": ":2: not valid YAML: expected the node content, but found '<stream end>'",
    "model: m\nproblems: {train: p}\noptimizer:\n  weightdecay: 1\n": ':4: unknown key "optimizer.weightdecay"; '
    'did you mean "optimizer.weight_decay"?',
    "model: {path: 3}\nproblems: {train: p}\n": ":1: model.path = 3 is not allowed; expected text",
    "model: m\nproblems:\n  verifier: math\n": ':2: "problems.train" is missing: Problem source: `file.jsonl`, '
    "`file.parquet`, `hf:dataset[:split]`, `gym:TASK?param=value`, `builtin:chain?steps=10`.",
}


@pytest.mark.parametrize("text", WRONG_FILES)
def test_wrong_file_is_explained_with_its_line(text: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}{WRONG_FILES[text]}"


def test_unknown_recipe_and_folder(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'^unknown recipe "chian"\. Did you mean "chain"\? Known: .*chain.*YAML file\.$'
    ):
        load_config("chian")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    assert (
        str(caught.value)
        == f"{tmp_path} is a folder, not a recipe; to go on with a run: skpo train --resume {tmp_path}"
    )


def test_every_setting_can_be_described() -> None:
    for key, field in iter_fields():
        assert allowed(field), key
    assert all(field_at(target) for target in SHORTHANDS.values() if target != "algorithm.name")
