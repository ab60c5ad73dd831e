"""`rollouts/step-000012.parquet`: every sample of a step, trained on or not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo.errors import RunError
from skpo.rollout.types import COMPLETION, REFINEMENT, SEGMENT, Group, Sample
from skpo.trainer.token_log import KEY, NAMES

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "rollouts"
ROLES = {COMPLETION: "completion", SEGMENT: "segment", REFINEMENT: "refinement"}
_NAME = re.compile(r"step-(\d+)\.parquet$")


def schema() -> pa.Schema:
    """Columns of a rollout file. `chosen`: the sample was trained on; null `score`: the verifier gave none.

    `entropy`, `log_ratio`, `token_advantage`: per token (see `skpo.trainer.token_log`); null where not at hand.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("step", pa.int32()),
            ("problem_id", pa.string()),
            ("role", pa.string()),
            ("chosen", pa.bool_()),
            ("prompt", pa.string()),
            ("context", pa.list_(pa.int32())),
            ("text", pa.string()),
            ("tokens", pa.list_(pa.int32())),
            ("logp", pa.list_(pa.float32())),
            ("score", pa.float32()),
            ("reward", pa.float32()),
            ("advantage", pa.float32()),
            ("baseline", pa.float32()),
            ("finished", pa.bool_()),
            ("stop_position", pa.int32()),
            ("seed", pa.int64()),
            ("version", pa.int32()),
            ("info", pa.string()),
            ("answer", pa.string()),
            *((name, pa.list_(pa.float32())) for name in NAMES),
        ]
    )


class RolloutLog:
    """Writes one file per step, whole or not at all; writing a step again replaces its file.

    resume_step: files of later steps are removed, since the resumed run makes them again; None removes all of them.
    """

    def __init__(self, folder: Path | str, resume_step: int | None = None) -> None:
        self.folder = Path(folder) / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        for path, step in _files(self.folder):
            if resume_step is None or step > resume_step:
                path.unlink()

    def write(self, step: int, groups: Sequence[Group]) -> Path:
        """Write a step's groups; returns the file's path.

        The advantage is `sample.info["advantage"]`, the stop position `info["stop_position"]` of the sample or its group;
        null where missing.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [row for group in groups for row in _rows(step, group)]
        path = self.folder / f"step-{step:06d}.parquet"
        temporary = path.with_name(f".{path.name}.tmp")
        pq.write_table(pa.Table.from_pylist(rows, schema=schema()), temporary, compression="zstd")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        return path


def read_rollouts(folder: Path | str, steps: Sequence[int] | None = None) -> pa.Table:
    """All samples of a run (or of these steps), in the order of steps, as one Arrow table with the columns of `schema`.

    Raises RunError where the run has no rollouts.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(folder) / FOLDER
    found = [file for file, step in _files(path) if steps is None or step in steps]
    if not found:
        raise RunError(
            f"{path}: no rollouts of {'any step' if steps is None else f'steps {list(steps)}'}; was rollout.save off?"
        )
    return pa.concat_tables([pq.read_table(file, partitioning=None) for file in found], promote_options="default")


def rollout_files(folder: Path | str) -> list[tuple[Path, int]]:
    """(file, step) of every rollout file of a run, ascending."""
    return _files(Path(folder) / FOLDER)


def _files(folder: Path) -> list[tuple[Path, int]]:
    """(file, step), ascending."""
    matches = [(path, _NAME.search(path.name)) for path in folder.glob("step-*.parquet")]
    return sorted(((path, int(m[1])) for path, m in matches if m), key=lambda pair: pair[1])


def _rows(step: int, group: Group) -> Iterator[dict[str, Any]]:
    for chosen, samples in ((True, group.samples), (False, group.unused)):
        for sample in samples:
            yield _row(step, group, sample, chosen)


def _row(step: int, group: Group, sample: Sample, chosen: bool) -> dict[str, Any]:
    own = {key: value for key, value in sample.info.items() if key not in ("advantage", "stop_position", KEY)}
    per_token = sample.info.get(KEY, {})
    return {
        "step": step,
        "problem_id": group.problem.id,
        "role": ROLES[sample.role],
        "chosen": chosen,
        "prompt": group.problem.text,
        "context": list(sample.context),
        "text": sample.text,
        "tokens": sample.tokens.tolist(),
        "logp": sample.logp.tolist(),
        "score": sample.score,
        "reward": sample.reward if chosen else None,
        "advantage": sample.info.get("advantage"),
        "baseline": sample.baseline,
        "finished": sample.finished,
        "stop_position": sample.info.get("stop_position", group.info.get("stop_position")),
        "seed": sample.seed,
        "version": sample.version,
        "info": json.dumps(own, default=str) if own else None,
        "answer": str(group.problem.answer),
        **{name: per_token.get(name) for name in NAMES},
    }
