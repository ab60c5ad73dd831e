"""Evaluations: one path for all, resumable, several sources in one table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import TextlessRenderer, sample

import skpo
from skpo.errors import RunError
from skpo.evaluation import Evaluation, evaluate, evaluate_all, run_evaluation
from skpo.evaluation.result import make_table
from skpo.evaluation.store import SampleFile, open_folder
from skpo.problems import Problem
from skpo.rollout.types import Group, PlanRun, Sampling
from skpo.trainer.judge import Judge
from skpo.verifiers.pool import VerifierPool

MODEL = "builtin:chain-base"
SOURCE = "builtin:chain?steps=4&split=heldout&size=6"


class Engine:
    """Answers a problem's prompt with the samples of a script, in the order of the plans; dies after `lasts` of them."""

    def __init__(self, answers: dict[str, list[int]], lasts: int = 100) -> None:
        self.answers, self.lasts, self.asked = answers, lasts, list[str]()

    def run(self, runs: Iterable[PlanRun]) -> Iterator[tuple[int, Group]]:
        for number, run in enumerate(runs):
            if number == self.lasts:
                raise KeyboardInterrupt
            next(run.plan)
            try:
                run.plan.send([sample([token], finished=token != 9) for token in self.answers[str(run.seed)]])
            except StopIteration as stop:
                self.asked.append(stop.value.problem.id)
                yield number, stop.value


def problems() -> list[Problem]:
    return [Problem(f"problem {i}", str(i), id=str(i), verifier="number") for i in range(3)]


def go(
    answers: list[list[int]], monkeypatch: pytest.MonkeyPatch, lasts: int = 100, **options: Any
) -> tuple[Evaluation, Engine]:
    monkeypatch.setattr("skpo.evaluation.run.derive_seed", lambda seed, kind, id: id)
    engine = Engine({str(i): tokens for i, tokens in enumerate(answers)}, lasts)
    with VerifierPool() as pool:
        judge = Judge(pool, TextlessRenderer().decode, "number")
        result = run_evaluation(
            engine, TextlessRenderer(), judge, problems(), samples=4, sampling=Sampling(), max_tokens=1,
            ks=(1, 2, 4, 8), votes=True, **options,
        )  # type: ignore[arg-type] # fmt: skip
    return result, engine


ANSWERS = [[0, 0, 5, 9], [1, 5, 5, 5], [2, 2, 2, 2]]


def test_figures_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right: 2, 1 and 4 of 4. pass@2 = 1 - C(2,2)/C(4,2) = 5/6, 1/2, 1. maj@4: problem 0 has 0 in front, problem 1 has not."""
    result, _ = go(ANSWERS, monkeypatch)
    assert result.correct == {"0": 2, "1": 1, "2": 4}
    assert result.ks == (1, 2, 4)
    assert result.mean == pytest.approx((2 / 4 + 1 / 4 + 1) / 3)
    assert result.pass_at(2) == pytest.approx((5 / 6 + 1 / 2 + 1) / 3, abs=1e-12)
    assert result.maj_at(4) == pytest.approx(2 / 3)
    assert result.maj_at(1) == pytest.approx(result.mean)
    assert result.labels == {"0": [0, 0, 1, 2], "1": [0, 1, 1, 1], "2": [0, 0, 0, 0]}
    assert result.cut == 1
    assert result.interval == (pytest.approx(0.25), pytest.approx(1.0))  # P(all three draws the worst) = 1/27 > 2.5 %
    found = result.to_dict()
    assert found["mean@4"] == found["pass_at_k"]["1"] == found["maj_at_k"]["1"] == pytest.approx(result.mean)
    assert json.dumps(found)


def test_a_killed_evaluation_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    with pytest.raises(KeyboardInterrupt):
        go(ANSWERS, monkeypatch, lasts=2, store=SampleFile(file))
    assert len(file.read_text().splitlines()) == 2
    with file.open("a") as torn:
        torn.write('{"id": "2", "prompt": "pro')
    seen: list[tuple[int, int]] = []
    result, engine = go(ANSWERS, monkeypatch, store=SampleFile(file), progress=lambda *x: seen.append(x))
    assert engine.asked == ["2"]
    assert seen == [(3, 3)]
    whole, _ = go(ANSWERS, monkeypatch)
    assert result == whole
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    assert [s["score"] for s in rows[1]["samples"]] == [1.0, 0.0, 0.0, 0.0]
    assert rows[0]["samples"][3] == {"text": "9", "score": 0.0, "tokens": 1, "finished": False}


def test_other_settings_are_refused(tmp_path: Path) -> None:
    open_folder(tmp_path, {"seed": 0, "model": "a"})
    open_folder(tmp_path, {"seed": 0, "model": "a"})
    with pytest.raises(RunError, match=r"other settings \(model: \"a\" there, \"b\" now; seed: 0 there, 1 now\)"):
        open_folder(tmp_path, {"seed": 1, "model": "b"})


def test_several_sources_resume_to_the_same_numbers(tmp_path: Path) -> None:
    options: dict[str, Any] = {"samples": 4, "ks": (1, 4), "verifier": "exact", "max_tokens": 48, "seed": 3}
    sources = [SOURCE, "builtin:chain?steps=5&split=heldout&size=3"]
    suite = evaluate_all(MODEL, sources, out=tmp_path, **options)
    assert [r.name for r in suite.results] == sources
    assert [len(r.correct) for r in suite.results] == [6, 3]
    files = sorted((tmp_path / "samples").iterdir())
    assert [len(f.read_text().splitlines()) for f in files] == [6, 3]
    kept = files[0].read_text().splitlines(keepends=True)
    files[0].write_text("".join(kept[1:4]) + kept[4][:50])
    files[1].unlink()
    again = evaluate_all(MODEL, sources, out=tmp_path, **options)
    for one, other in zip(suite.results, again.results, strict=True):
        assert one.scores == other.scores
        assert one.to_dict() | {"seconds": 0} == other.to_dict() | {"seconds": 0}
    assert len(json.loads((tmp_path / "results.json").read_text())["evaluations"]) == 2
    with pytest.raises(RunError, match="max_tokens: 48 there, 40 now"):
        evaluate_all(MODEL, sources, out=tmp_path, **options | {"max_tokens": 40})
    assert evaluate(MODEL, SOURCE, **options).scores == suite.results[0].scores


def test_settings_stand_beside_the_score() -> None:
    from rich.console import Console

    def one(name: str, temperature: float) -> Evaluation:
        scores = {"a": [1.0, 0.0], "b": [0.0, 0.0]}
        return Evaluation(
            name, 2, (1, 2), scores, {"a": 1, "b": 0}, [3, 5, 4, 4], labels={"a": [0, 1], "b": [0, 0]}, cut=1,
            settings={"model": "runs/m", "temperature": temperature, "seed": 7},
        )  # fmt: skip

    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(make_table([one("first", 1.0), one("second", 0.5)]))
    text = console.export_text()
    for words in ("first, 2 x 2", "temperature=0.5", "mean@2 0.250 [0.000, 0.500]", "pass@2", "0.500 [0.000, 1.000]", "maj@2",
                  "model=runs/m, seed=7", "95 % bootstrap interval over problems", "25%"):  # fmt: skip
        assert words in text, text


def test_the_public_name_is_the_function() -> None:
    assert skpo.evaluate is evaluate
