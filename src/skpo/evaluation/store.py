"""Samples of an evaluation on disk, so that it can go on: one JSON line per problem, written as soon as it is scored.

FOLDER/settings.json              what the samples depend on; another run with other settings is refused
FOLDER/samples/SOURCE.jsonl       a problem a line: id, prompt, answer, its samples with text and score
FOLDER/results.json               the figures, once all is done
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skpo.errors import RunError
from skpo.rollout.types import Group


@dataclass
class Answered:
    """One problem with its scored samples. labels: None where the verifier's answers can't be compared."""

    id: str
    scores: list[float | None]
    lengths: list[int]
    finished: list[bool]
    generated_tokens: int
    labels: list[int] | None = None
    failures: list[str] = field(default_factory=list)


class SampleFile:
    """The samples on one problem source. Lines that a kill cut short are dropped, and their problems sampled again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, Answered] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = b""
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            try:
                record = Answered(**json.loads(line)["result"])
            except (ValueError, KeyError, TypeError):
                continue
            if line.endswith(b"\n"):
                self.done[record.id] = record
                whole += line
        if path.exists() and len(whole) != path.stat().st_size:
            _replace(path, whole)

    def add(self, group: Group, record: Answered) -> None:
        """Append one problem; on disk when this returns."""
        samples = [
            {"text": s.text, "score": s.score, "tokens": len(s), "finished": s.finished, **_failure(s.info)}
            for s in group.completions
        ]
        row = {
            "id": group.problem.id, "prompt": group.problem.prompt, "answer": group.problem.answer, "samples": samples,
            "result": vars(record),
        }  # fmt: skip
        with self.path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[record.id] = record


def _failure(info: Mapping[str, Any]) -> dict[str, str]:
    return {"failure": info["verify_failure"]} if "verify_failure" in info else {}


def open_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Make the folder, or check that it holds samples of the same settings. Raises `RunError` where it doesn't."""
    file = folder / "settings.json"
    wanted = json.loads(json.dumps(settings, default=str))
    if not file.exists():
        if (folder / "samples").exists():
            raise RunError(f"{folder}: samples without settings.json. Choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        _replace(file, (json.dumps(wanted, indent=2) + "\n").encode())
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise RunError(f"{file} can't be read. Choose another folder.") from None
    changed = [
        f"{key}: {_short(found.get(key))} there, {_short(wanted.get(key))} now"
        for key in sorted({*found, *wanted})
        if found.get(key) != wanted.get(key)
    ]
    if changed:
        raise RunError(
            f"{folder} holds an evaluation with other settings ({'; '.join(changed)}). Use the same ones, or another folder."
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def write_results(folder: Path, results: Mapping[str, Any]) -> None:
    """Write `results.json` at once or not at all."""
    _replace(folder / "results.json", (json.dumps(results, indent=2, default=str) + "\n").encode())


def file_name(source: str, number: int) -> str:
    """Name of a source's sample file."""
    return f"{number}-{re.sub(r'[^A-Za-z0-9._=-]+', '_', source)[:60]}.jsonl"


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
