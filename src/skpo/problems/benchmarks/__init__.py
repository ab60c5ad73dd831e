"""Named benchmarks: `benchmark:aime24`, or plainly `aime24`; `aime24=FILE.jsonl` reads a local file of the same shape.

Each is a YAML file beside this one:

    title, size       what it is, and how many problems it has
    hub, revision, split, config    where its rows are; or `package` and `file`: inside an installed Python package
    id                column with the id, if there is one
    prompt            text around columns in braces; `{options}` is the column named by `options`, as lettered lines
    answer            column with the gold answer (dots reach inside; JSON text is opened), or a mapping of names to
                      columns, from which one gold answer is made (those that a row doesn't have are left out)
    verifier, samples, deadline     how it is scored, samples per problem, seconds an answer may take
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

from skpo.errors import ProblemError, unknown
from skpo.problems.base import Problem
from skpo.problems.files import jsonl_rows, parquet_rows
from skpo.problems.query import parse_query
from skpo.problems.rows import MISSING, Row, RowReader, lookup

FOLDER = Path(__file__).parent
PARAMETERS = ("path", "revision")
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Benchmark:
    """A declared benchmark; fields as in the YAML file."""

    name: str
    title: str
    size: int
    prompt: str
    answer: str | dict[str, str]
    verifier: str
    samples: int
    hub: str | None = None
    revision: str = "main"
    split: str = "test"
    config: str | None = None
    package: str | None = None
    file: str | None = None
    id: str | None = None
    options: str | None = None
    deadline: float = 2.0

    @property
    def columns(self) -> list[str]:
        """Columns that every row has to have."""
        found = [self.options if name == "options" and self.options else name for name in _FIELD.findall(self.prompt)]
        if isinstance(self.answer, str):
            found.append(self.answer)
        return list(dict.fromkeys(found))

    @property
    def where(self) -> str:
        """Where its rows come from, in words."""
        if self.package:
            return f"the Python package {self.package}"
        config = f", configuration {self.config}" if self.config else ""
        return f"hub dataset {self.hub} (split {self.split}{config}, revision {self.revision})"


@cache
def names() -> tuple[str, ...]:
    """All benchmarks, in order of the alphabet."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def get_benchmark(name: str) -> Benchmark:
    """A benchmark by name. Raises `ProblemError` for an unknown one."""
    import yaml

    if name not in names():
        raise ProblemError(unknown("benchmark", name, names()))
    return Benchmark(name=name, **yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def parse(source: str) -> tuple[Benchmark, dict[str, str]] | None:
    """The benchmark that a source names, with `path` or `revision` where given; None for any other source."""
    text = source.removeprefix("benchmark:")
    named, equals, path = text.partition("=")
    if equals and "?" not in named and (text != source or named in names()):
        return get_benchmark(named), {"path": path}
    name, values = parse_query(text, source) if text != source or text.partition("?")[0] in names() else ("", {})
    if not name:
        return None
    for key in values:
        if key not in PARAMETERS:
            raise ProblemError(f"{source}: {unknown('parameter', key, PARAMETERS)}")
    return get_benchmark(name), values


def load_benchmark(
    benchmark: Benchmark, values: Mapping[str, str], limit: int | None = None, check: bool = True
) -> list[Problem]:
    """Its problems. values: `path` (a local file of the same shape) or `revision`.

    Raises `ProblemError` for rows that lack a column, and, saying what to do instead, where there is no network.
    """
    reader = RowReader(verifier=benchmark.verifier, check=check, duplicates="drop")
    found = []
    for problem in reader.read(problem_rows(benchmark, values)):
        found.append(problem)
        if limit is not None and len(found) == limit:
            break
    return found


def problem_rows(benchmark: Benchmark, values: Mapping[str, str]) -> Iterator[Row]:
    """Rows with `prompt`, `answer` and perhaps `id`, made from the benchmark's own columns."""
    for where, row in _rows(benchmark, values):
        if not isinstance(row, Mapping):
            raise ProblemError(f"{where}: a row is an object with columns.")
        missing = [column for column in benchmark.columns if lookup(row, column) is MISSING]
        if missing:
            raise ProblemError(
                f'{where}: no "{missing[0]}"; columns here: {", ".join(map(str, row)) or "none"}. {benchmark.name} has the '
                f"columns of {benchmark.where}: {', '.join(benchmark.columns)}."
            )
        made = {"prompt": _prompt(benchmark, row), "answer": _answer(benchmark, row)}
        identity = lookup(row, benchmark.id) if benchmark.id else MISSING
        if identity is not MISSING and identity is not None:
            made["id"] = f"{benchmark.name}/{identity}"
        yield where, made


def _prompt(benchmark: Benchmark, row: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "options" and benchmark.options:
            options = lookup(row, benchmark.options)
            return "\n".join(f"{letter}. {option}" for letter, option in zip("ABCDEFGHIJ", options, strict=False))
        found = lookup(row, name)
        return match[0] if found is MISSING else str(found or "")

    text = _FIELD.sub(value, benchmark.prompt)
    return text if benchmark.prompt == "{prompt}" else text.rstrip()


def _answer(benchmark: Benchmark, row: Mapping[str, Any]) -> Any:
    if isinstance(benchmark.answer, str):
        found = lookup(row, benchmark.answer)
        return ", ".join(map(str, found)) if isinstance(found, list) else found
    made = {}
    for key, column in benchmark.answer.items():
        found = _inside(row, column)
        if found is not MISSING and found is not None:
            made[key] = found
    if "function" in made and "class Solution" in str(row.get("starter_code", "")):
        made["function"] = f"Solution.{made['function']}"
    return made


def _inside(row: Mapping[str, Any], column: str) -> Any:
    """A column, or what is inside one, which may be JSON text."""
    first, dot, rest = column.partition(".")
    found = lookup(row, first)
    if dot and isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return MISSING
    if not dot:
        return found
    return lookup(found, rest) if isinstance(found, Mapping) else MISSING


def _rows(benchmark: Benchmark, values: Mapping[str, str]) -> Iterator[Row]:
    path = values.get("path") or (_package_file(benchmark) if benchmark.package else None)
    if path is not None:
        local = Path(path)
        yield from parquet_rows(local) if local.suffix == ".parquet" else jsonl_rows(local)
        return
    from skpo.problems.hub import WITHOUT_NETWORK, hub_rows

    options = {"revision": values.get("revision", benchmark.revision)}
    if benchmark.config:
        options["name"] = benchmark.config
    try:
        yield from hub_rows(f"benchmark:{benchmark.name}", f"{benchmark.hub}:{benchmark.split}", options)
    except ProblemError as error:
        columns = ", ".join(benchmark.columns)
        raise ProblemError(
            f"{str(error).replace(WITHOUT_NETWORK, '').rstrip()} Where there is a network, export {benchmark.where} as JSON lines or parquet (columns {columns}) and give "
            f"--problems {benchmark.name}=FILE.jsonl."
        ) from None


def _package_file(benchmark: Benchmark) -> str:
    """The data file inside an installed package, which isn't imported."""
    folder, _, rest = str(benchmark.file).partition("/")
    found = util.find_spec(folder)
    for place in (found.submodule_search_locations or []) if found else []:
        if (Path(place) / rest).is_file():
            return str(Path(place) / rest)
    raise ProblemError(
        f"benchmark:{benchmark.name}: its problems are in the package {benchmark.package}, which is not installed: pip "
        f"install {benchmark.package}, or give --problems {benchmark.name}=FILE.jsonl."
    )
