"""`NAME?key=value&key=value`: the part of a problem source behind `builtin:` and `gym:`."""

from __future__ import annotations

from urllib.parse import unquote

from skpo.errors import ProblemError


def parse_query(text: str, source: str) -> tuple[str, dict[str, str]]:
    """Split `NAME?key=value&...` into the name and its parameters, all still text.

    A `+` stays a `+` (`operations=+-*`), unlike in the query of a web address; `%26` writes an `&`.
    Raises `ProblemError` for a part without `=` and for a key given twice.
    """
    name, _, query = text.partition("?")
    values: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ProblemError(f'{source}: "{part}" is no parameter. Write {name}?key=value&key=value.')
        if key in values:
            raise ProblemError(f'{source}: parameter "{key}" is given twice.')
        values[key] = unquote(value)
    return name, values


def parse_int(source: str, key: str, value: str, low: int, high: int) -> int:
    """An integer in [low, high], or a `ProblemError` that names the parameter."""
    try:
        number = int(value)
    except ValueError:
        raise ProblemError(f'{source}: {key}="{value}" is no integer. Use {low} to {high}.') from None
    if not low <= number <= high:
        raise ProblemError(f"{source}: {key}={number} is out of range. Use {low} to {high}.")
    return number
