"""Values on the line between a test and the program under test: JSON with tags, nothing that could run code when read.

What a program gives back is plain data, or a number under which it keeps an object that is none ("ref").
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

MAX_FRAME = 64 << 20
MAX_DEPTH = 150
MAX_ITEMS = 1_000_000  # of an iterator that is read to its end

Other = Callable[[Any], Any]


class GoneError(BaseException):
    """The other side ended, or sent what is no message. No `except Exception` of a test must hold it up."""


def encode(value: Any, other: Other, depth: int = 0) -> Any:
    """A value as JSON-ready data. `other` encodes what is no plain data, or raises TypeError."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if depth > MAX_DEPTH:
        raise TypeError("nested too deeply")
    deeper = depth + 1
    if kind is list:
        return [encode(item, other, deeper) for item in value]
    if isinstance(value, dict):
        return {"t": "dict", "v": [[encode(k, other, deeper), encode(v, other, deeper)] for k, v in value.items()]}
    for cls, tag in ((tuple, "tuple"), (list, "list"), (set, "set"), (frozenset, "frozenset"), (deque, "deque")):
        if isinstance(value, cls):
            return {"t": tag, "v": [encode(item, other, deeper) for item in value]}
    for plain in (bool, int, float, str):
        if isinstance(value, plain):  # a subclass, such as an enumeration
            return plain(value)
    if isinstance(value, bytes | bytearray):
        return {"t": "bytes", "v": bytes(value).hex()}
    if isinstance(value, complex):
        return {"t": "complex", "v": [value.real, value.imag]}
    if isinstance(value, Fraction | Decimal):
        return {"t": "fraction" if isinstance(value, Fraction) else "decimal", "v": str(value)}
    if isinstance(value, range):
        return {"t": "range", "v": [value.start, value.stop, value.step]}
    if hasattr(kind, "__next__") or isinstance(value, type({}.keys()) | type({}.values()) | type({}.items())):
        items = list(islice(iter(value), MAX_ITEMS))
        return {"t": "iter", "v": [encode(item, other, deeper) for item in items]}
    return other(value)


BUILD: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque, "dict": dict, "iter": iter,
}  # fmt: skip


def decode(data: Any, ref: Callable[[int], Any]) -> Any:
    """The value of `encode`'s data; `ref` stands for an object by its number. Raises ValueError for anything else."""
    if isinstance(data, list):
        return [decode(item, ref) for item in data]
    if not isinstance(data, dict):
        return data
    tag, inner = data["t"], data["v"]
    if tag == "dict":
        return {decode(k, ref): decode(v, ref) for k, v in inner}
    if tag in BUILD:
        return BUILD[tag]([decode(item, ref) for item in inner])
    if tag == "ref":
        return ref(int(inner))
    if tag == "bytes":
        return bytes.fromhex(inner)
    if tag == "complex":
        return complex(*map(float, inner))
    if tag == "range":
        return range(*map(int, inner))
    if tag in ("fraction", "decimal"):
        return (Fraction if tag == "fraction" else Decimal)(inner)
    raise ValueError(f"unknown tag {tag!r:.20}")


def send(fd: int, message: Any) -> None:
    """Raises GoneError where nobody reads."""
    body = json.dumps(message).encode()
    view = memoryview(len(body).to_bytes(4, "big") + body)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        raise GoneError from None


def receive(fd: int) -> Any:
    """The next message. Raises GoneError at the end of the line and for what is no message."""
    size = int.from_bytes(_exactly(fd, 4), "big")
    if size > MAX_FRAME:
        raise GoneError
    try:
        return json.loads(_exactly(fd, size))
    except (ValueError, RecursionError):
        raise GoneError from None


def _exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = os.read(fd, min(size - len(data), 1 << 20))
        except OSError:
            part = b""
        if not part:
            raise GoneError
        data += part
    return bytes(data)
