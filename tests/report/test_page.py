"""The written page, the command, and the report of a run that is still training."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from report.made_runs import HOSTILE, large_run, save_metrics, save_rollouts, save_tokenizer, skip_group, small_run

from skpo.errors import RunError
from skpo.report import write_report
from skpo.report.pack import unpack
from skpo.report.page import find_runs, run_names
from skpo.report.refresh import PAUSE, Refresher


def payload(page: Path, name: str) -> tuple[dict, dict]:
    found = re.search(rf'id="data-{name}">([^<]*)<', page.read_text())
    assert found is not None
    return unpack(found[1])


class TestPage:
    def test_self_contained(self, tmp_path: Path) -> None:
        report = write_report([small_run(tmp_path / "a")])
        text = report.path.read_text()
        assert report.path == tmp_path / "a" / "report.html"
        assert report.size == len(text.encode())
        assert not re.search(r'(?:src|href)="(?!data:)', text)
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
        assert "default-src 'none'" in text
        assert HOSTILE not in text
        assert text.count("</script>") == text.count("<script")

    def test_what_it_holds(self, tmp_path: Path) -> None:
        page = write_report(
            [small_run(tmp_path / "a"), small_run(tmp_path / "b", shift=0.1)], tmp_path / "two.html"
        ).path
        main, arrays = payload(page, "main")
        assert [run["name"] for run in main["runs"]] == ["a", "b"]
        run = main["runs"][0]
        assert (run["algorithm"], run["steps"], run["planned"], run["tokens"], run["seconds"]) == (
            "skpo",
            4,
            4,
            400.0,
            8.0,
        )
        assert run["rollouts"]["rollouts"] == run["rollouts"]["text_rollouts"] == 4 * 16 + 1
        place = run["metrics"].index("reward_mean")
        assert arrays[f"r1_m{place}"][1] == pytest.approx(-0.2)
        assert not any(row["differs"] for row in main["settings"])
        index, lists = payload(page, "rollouts")
        assert index["problems"]["ids"] == ["even", "hard", HOSTILE]
        assert lists["r0_right"].tolist()[:2] == [2, 0]
        assert len(index["vocabularies"]) == 1  # both runs have the same tokenizer

    def test_texts_are_left_out_by_rule(self, tmp_path: Path) -> None:
        run = large_run(tmp_path / "big", steps=8, problems=6, group=4, length=200)
        whole = write_report([run], tmp_path / "whole.html")
        assert whole.with_text == whole.rollouts == 192
        part = write_report([run], tmp_path / "part.html", most_bytes=whole.size - 60_000)
        assert part.size < whole.size - 40_000
        assert 0 < part.with_text < part.rollouts
        main, _ = payload(part.path, "main")
        assert main["runs"][0]["rollouts"]["text_rollouts"] == part.with_text
        _, lists = payload(part.path, "rollouts")
        assert (lists["r0_block"] >= 0).all()  # verdicts of every rollout are there
        assert set(lists["r0_step"][lists["r0_text"] == 1].tolist()) == set(range(1, 9))  # and texts of every step

    def test_bare_runs(self, tmp_path: Path) -> None:
        """No rollouts; no metrics; no evaluation; a metric that never was finite; no tokenizer."""
        save_metrics(tmp_path / "metrics", [{"step": 1, "loss": None, "seconds": 1.0}])
        save_rollouts(tmp_path / "rollouts", 1, skip_group(1, "a", [True, False, True, False]))
        (tmp_path / "settings").mkdir()
        (tmp_path / "settings" / "config.yaml").write_text("steps: 3\n")
        report = write_report([tmp_path / n for n in ("metrics", "rollouts", "settings")], tmp_path / "r.html")
        main, _ = payload(report.path, "main")
        assert [run["steps"] for run in main["runs"]] == [1, 0, 0]
        assert main["runs"][1]["rollouts"]["vocabulary"] is None

    @pytest.mark.slow
    def test_scale(self, tmp_path: Path) -> None:
        report = write_report([large_run(tmp_path / "big")])
        assert report.rollouts == 50_000
        assert report.size < 20_000_000


class TestRuns:
    def test_folders_of_runs(self, tmp_path: Path) -> None:
        for name in ("skpo/seed0", "grpo/seed0"):
            save_metrics(tmp_path / "compare" / name, [{"step": 1}])
        found = find_runs([tmp_path / "compare"])
        assert [str(f.relative_to(tmp_path)) for f in found] == ["compare/grpo/seed0", "compare/skpo/seed0"]
        assert run_names(found) == ["grpo/seed0", "skpo/seed0"]
        assert run_names(found[:1]) == ["seed0"]

    def test_errors_say_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="no such folder"):
            find_runs([tmp_path / "missing"])
        with pytest.raises(RunError, match=r"no run here \(metrics\.jsonl"):
            find_runs([tmp_path])

    def test_command(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        from skpo.cli import main

        small_run(tmp_path / "a")
        for words, code in (
            ([str(tmp_path / "a"), "--out", str(tmp_path / "deep" / "x.html")], 0),
            ([str(tmp_path / "no")], 1),
        ):
            monkeypatch.setattr(sys, "argv", ["skpo", "report", *words])
            with pytest.raises(SystemExit) as stopped:
                main()
            assert bool(stopped.value.code) == bool(code)
        assert "wrote" in capsys.readouterr().out
        assert (tmp_path / "deep" / "x.html").is_file()


class TestRefresher:
    def test_never_more_than_its_share(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each report takes 2 s, a step 10 s: after the first, at least 2 s / 1 % = 200 s pass."""
        now, written = [0.0], []

        def write(folders: list[Path]) -> str:
            now[0] += 2.0
            written.append(now[0])
            return "r"

        monkeypatch.setattr("skpo.report.page.write_report", write)
        refresher = Refresher(tmp_path, lambda text: None, clock=lambda: now[0])
        for _ in range(100):
            now[0] += 10.0
            refresher.step()
        assert written[0] == PAUSE + 2.0
        assert min(b - a for a, b in pairwise(written)) >= 200.0
        assert 2.0 * len(written) / now[0] < 0.015
        assert refresher.finish() == "r"

    def test_a_failure_is_told_once_and_stops_nothing(self, tmp_path: Path) -> None:
        told: list[str] = []
        refresher = Refresher(tmp_path / "missing", told.append)
        assert refresher.finish() is None
        assert refresher.finish() is None
        assert len(told) == 1
        assert "no such folder" in told[0]


def test_a_checkpoint_may_be_of_any_step(tmp_path: Path) -> None:
    save_rollouts(tmp_path / "a", 3, skip_group(3, "p", [True] * 4))
    save_tokenizer(tmp_path / "a", step=120)
    main, _ = payload(write_report([tmp_path / "a"]).path, "main")
    assert main["runs"][0]["rollouts"]["vocabulary"] == 0
