"""`load_problems`: one text names a source of problems, whatever kind it is."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from skpo.errors import ProblemError, unknown
from skpo.problems.base import Problem
from skpo.problems.benchmarks import load_benchmark
from skpo.problems.benchmarks import parse as parse_benchmark
from skpo.problems.chain import load_chain
from skpo.problems.files import jsonl_rows, parquet_rows
from skpo.problems.fork import load_fork
from skpo.problems.gym import load_gym
from skpo.problems.hub import hub_rows
from skpo.problems.query import parse_query
from skpo.problems.rows import RowReader

FORMS = (
    "problems.jsonl, problems.parquet, hf:dataset[:split], gym:TASK?param=value, builtin:chain?steps=10 or a benchmark's "
    "name such as aime24"
)


def load_problems(
    source: str,
    *,
    prompt_key: str = "prompt",
    answer_key: str = "answer",
    verifier: str | None = None,
    limit: int | None = None,
    check: bool = True,
) -> list[Problem]:
    """Problems of a source, in its order.

    source:      `file.jsonl`, `file.parquet`, `hf:dataset[:split]`, `gym:TASK?param=value`, `builtin:chain?steps=10`, or
                 a benchmark: `aime24`, `benchmark:aime24?revision=...`, `aime24=file.jsonl`.
                 Rows that are there twice are refused; `?duplicates=drop` after a file or dataset drops them.
    prompt_key:  column with the prompt, text or chat messages (files and `hf:`).
    answer_key:  column with the gold answer; `reward_model.ground_truth` reaches into a nested column.
    verifier:    verifier of problems that name none. Built-in ones name "exact", gym problems "gym".
    limit:       read at most this many problems; rows after them are not looked at.
    check:       refuse gold answers that their verifier can't read.

    The columns `id` and `verifier` are used where a row has them; all other columns are kept in `Problem.columns`.

    Raises `ProblemError`, which says where (file and line, or row), what was found, and what to do.
    """
    if limit is not None and limit < 1:
        raise ProblemError(f"{source}: limit={limit}. Use 1 or more, or None for all problems.")
    kind, colon, rest = source.partition(":")
    if colon and kind == "builtin":
        name, values = parse_query(rest, source)
        builtin = {"chain": load_chain, "fork": load_fork}
        if name not in builtin:
            raise ProblemError(f"{source}: {unknown('built-in problem set', name, builtin)}")
        return builtin[name](values, source, limit)
    if colon and kind == "gym":
        name, values = parse_query(rest, source)
        problems = load_gym(name, values, source, limit)
        reader = RowReader(check=check and values.get("verifier", "gym") != "gym")
        for i, problem in enumerate(problems):
            reader.check_gold(f"{source}, problem {i}", problem)
        return problems
    benchmark = parse_benchmark(source)
    if benchmark is not None:
        return load_benchmark(*benchmark, limit=limit, check=check)
    name, values = parse_query(source, source)
    duplicates = values.pop("duplicates", "refuse")
    if duplicates not in ("refuse", "drop"):
        raise ProblemError(f"{source}: {unknown('value of duplicates', duplicates, ['refuse', 'drop'])}")
    if name.startswith("hf:"):
        # Without the parameters: errors name the dataset and the row.
        rows = hub_rows(name, name.removeprefix("hf:"), values)
    elif values:
        raise ProblemError(f"{source}: {unknown('parameter', next(iter(values)), ['duplicates'])}")
    elif name.endswith((".jsonl", ".ndjson", ".jsonl.gz")):
        rows = jsonl_rows(Path(name))
    elif name.endswith(".parquet"):
        rows = parquet_rows(Path(name))
    else:
        raise ProblemError(f'"{source}" is no problem source. Use {FORMS}.')
    reader = RowReader(prompt_key, answer_key, verifier, check, duplicates)
    return list(islice(reader.read(rows), limit))
