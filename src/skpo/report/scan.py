"""All rollouts of a run in numbers, without texts and tokens: what the page lists, and what the choice of texts is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skpo.errors import RunError
from skpo.trainer.rollout_log import rollout_files

if TYPE_CHECKING:
    import pyarrow as pa

ROLES = ("completion", "segment", "refinement")
UNSCORED, NONE_RIGHT, SOME_RIGHT, ALL_RIGHT = range(4)  #: outcomes of a group
_COLUMNS = ("problem_id", "role", "chosen", "prompt", "answer", "score", "reward", "logp", "context")
RIGHT = 1.0 - 1e-9


@dataclass
class Problems:
    """Distinct problems of all runs: id, text and answer, numbered in the order they are met."""

    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)
    _number: dict[tuple[str, str], int] = field(default_factory=dict)

    def number(self, key: str, text: str, answer: str | None) -> int:
        found = self._number.setdefault((key, text), len(self.ids))
        if found == len(self.ids):
            self.ids.append(key)
            self.texts.append(text)
            self.answers.append(answer)
        elif self.answers[found] is None:
            self.answers[found] = answer
        return found


@dataclass(frozen=True)
class Groups:
    """One entry per problem and step, in the order they were logged. A group's rows lie together in its step's file.

    file: index into `paths`; start, rows: which rows of that file; tokens: sampled tokens and, once, its contexts'; right of scored:
    verdicts of the trained completions and refinements; outcome: see above; reward: their mean, NaN without any; roles: bit set.
    """

    paths: list[Path]
    file: np.ndarray
    step: np.ndarray
    problem: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    tokens: np.ndarray
    right: np.ndarray
    scored: np.ndarray
    reward: np.ndarray
    roles: np.ndarray
    unreadable: list[str]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def outcome(self) -> np.ndarray:
        """UNSCORED, NONE_RIGHT, SOME_RIGHT or ALL_RIGHT of each group."""
        some = np.where(self.right == self.scored, ALL_RIGHT, SOME_RIGHT)
        return np.where(self.scored == 0, UNSCORED, np.where(self.right == 0, NONE_RIGHT, some))


_NUMBERS = ("step", "problem", "start", "rows", "tokens", "right", "scored", "reward", "roles")


def scan(folder: Path, problems: Problems) -> Groups:
    """Read a run's rollout files once. A file that can't be read is left out and named in `unreadable`."""
    parts: list[dict[str, np.ndarray]] = []
    paths: list[Path] = []
    unreadable: list[str] = []
    for path, step in rollout_files(folder):
        try:
            table = read_columns(path, _COLUMNS)
            part = _groups(table, step, problems)
        except (OSError, RunError, KeyError, ValueError) as error:  # pyarrow's own errors are subclasses of these
            unreadable.append(f"{path.name}: {error}"[:200])
            continue
        part["file"] = np.full(len(part["step"]), len(paths))
        paths.append(path)
        parts.append(part)
    joined = {name: np.concatenate([p[name] for p in parts]) if parts else np.zeros(0) for name in (*_NUMBERS, "file")}
    return Groups(paths=paths, unreadable=unreadable, **joined)


def read_columns(path: Path, wanted: tuple[str, ...]) -> pa.Table:
    """The wanted columns of a rollout file, those that it has, each in one chunk."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = [name for name in wanted if name in file.schema_arrow.names]
        return file.read(columns=names).combine_chunks()


def _groups(table: pa.Table, step: int, problems: Problems) -> dict[str, np.ndarray]:
    rows = table.num_rows
    ids = table["problem_id"].to_numpy(zero_copy_only=False)
    changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1 if rows else np.zeros(0, dtype=np.int64)
    start = np.concatenate([[0], changes]).astype(np.int64) if rows else changes
    count = np.diff(np.append(start, rows))
    first = table.take(start)
    answers = first["answer"].to_pylist() if "answer" in first.column_names else [None] * len(start)
    prompts = first["prompt"].to_pylist()
    numbers = [
        problems.number(str(ids[i]), p or "", a) for i, p, a in zip(start.tolist(), prompts, answers, strict=True)
    ]
    role = role_numbers(table)
    counted = table["chosen"].to_numpy(zero_copy_only=False).astype(bool) & (role != ROLES.index("segment"))
    score, reward = floats(table, "score"), floats(table, "reward")
    with np.errstate(invalid="ignore"):
        scored, right = counted & ~np.isnan(score), counted & (score >= RIGHT)
    paid = counted & np.isfinite(reward)
    sums = [np.add.reduceat(values, start) if rows else np.zeros(0) for values in (
        scored.astype(np.int64), right.astype(np.int64), paid.astype(np.int64), np.where(paid, reward, 0.0),
        lengths(table, "logp"),
    )]  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(sums[2] > 0, sums[3] / sums[2], np.nan)
    context = lengths(table, "context")[start] if rows else np.zeros(0)
    return {
        "step": np.full(len(start), step), "problem": np.array(numbers, dtype=np.int64), "start": start, "rows": count,
        "scored": sums[0], "right": sums[1], "reward": mean, "tokens": sums[4] + 2 * context,
        "roles": np.bitwise_or.reduceat(1 << role, start) if rows else np.zeros(0, dtype=np.int64),
    }  # fmt: skip


def role_numbers(table: pa.Table) -> np.ndarray:
    """Index into ROLES of each row, int64; an unknown role counts as a completion."""
    names = table["role"].to_numpy(zero_copy_only=False)
    return sum((np.where(names == name, i, 0) for i, name in enumerate(ROLES)), np.zeros(len(names), dtype=np.int64))


def floats(table: pa.Table, name: str) -> np.ndarray:
    """A column of numbers as float64 [rows], NaN where it is null or missing."""
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)


def lists(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of lists as (values, offsets [rows + 1]): row i is values[offsets[i] : offsets[i + 1]]. A null list is empty."""
    import pyarrow as pa

    if name not in table.column_names or not table.num_rows:
        return np.zeros(0), np.zeros(table.num_rows + 1, dtype=np.int64)
    column = table[name]
    array = pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
    values = array.flatten().to_numpy(zero_copy_only=False)  # leaves null lists out, whatever lies under them
    sizes = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    return values, np.concatenate([[0], np.cumsum(sizes)])


def lengths(table: pa.Table, name: str) -> np.ndarray:
    """Length of each list, int64 [rows]."""
    return np.diff(lists(table, name)[1])
