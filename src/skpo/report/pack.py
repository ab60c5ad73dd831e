"""Packing: named arrays with a JSON header, compressed and written as base64; numbers of tokens in one byte each.

    packed = gzip(uint32 length of header | header, UTF-8 JSON, padded to 8 | arrays, each padded to 8)

Little-endian. The header's `arrays` says name, type, offset (from the first array) and length of each. `static/data.js` reads it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

MISSING = 255  #: byte of a value that is not there or not finite
_STEEP, _SCALE = 20.0, 40.0
_SIGNED_STEEP, _SIGNED_SCALE = 50.0, 20.0
_TYPES = {"u1", "u2", "u4", "i4", "f4", "f8"}


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], level: int = 6) -> str:
    """Header and arrays as base64 text. Arrays have one of the types u1 u2 u4 i4 f4 f8. NaN in the header raises ValueError."""
    body, table = bytearray(), []
    for name, array in arrays.items():
        kind = array.dtype.str[1:]
        if kind not in _TYPES:
            raise ValueError(f"{name}: arrays of {array.dtype} can't be packed")
        table.append([name, kind, len(body), len(array)])
        body += array.astype(array.dtype.newbyteorder("<")).tobytes()
        body += bytes(-len(body) % 8)
    text = json.dumps({**header, "arrays": table}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    head = text.encode("utf-8", errors="replace")
    raw = len(head).to_bytes(4, "little") + head
    raw += bytes(-len(raw) % 8)
    squeezer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return base64.b64encode(squeezer.compress(raw + bytes(body)) + squeezer.flush()).decode()


def unpack(packed: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(header, arrays): the inverse of `pack`."""
    raw = zlib.decompress(base64.b64decode(packed), 31)
    size = int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4 : 4 + size])
    base = 4 + size + -(4 + size) % 8
    arrays = {
        name: np.frombuffer(raw, f"<{kind}", length, base + offset) for name, kind, offset, length in header["arrays"]
    }
    return header, arrays


def positive_codes(values: np.ndarray) -> np.ndarray:
    """Values of 0 or more (negative log-probability, entropy) in a byte each: round(40 ln(1 + 20 v)), at most 254 (v = 28.5).

    A step is about 2.5 % of the value, 0.00125 near 0. Below 0 counts as 0; not finite is 255, but +inf is 254.
    """
    with np.errstate(invalid="ignore"):
        codes = np.rint(_SCALE * np.log1p(_STEEP * np.clip(values, 0, 1e6)))
    return np.where(np.isnan(values), MISSING, np.minimum(np.nan_to_num(codes), MISSING - 1)).astype(np.uint8)


def positive_values(codes: np.ndarray) -> np.ndarray:
    """Inverse of `positive_codes`; NaN for 255."""
    return np.where(codes == MISSING, np.nan, np.expm1(codes / _SCALE) / _STEEP)


def signed_codes(values: np.ndarray) -> np.ndarray:
    """Values of either sign (log-ratios) in a byte each: 127 + sign round(20 ln(1 + 50 |v|)), the second part at most 127."""
    with np.errstate(invalid="ignore"):
        size = np.minimum(np.rint(_SIGNED_SCALE * np.log1p(_SIGNED_STEEP * np.clip(np.abs(values), 0, 1e6))), 127)
    return np.where(np.isnan(values), MISSING, 127 + np.sign(np.nan_to_num(values)) * np.nan_to_num(size)).astype(
        np.uint8
    )


def signed_values(codes: np.ndarray) -> np.ndarray:
    """Inverse of `signed_codes`; NaN for 255."""
    size = codes.astype(np.float64) - 127
    return np.where(codes == MISSING, np.nan, np.sign(size) * np.expm1(np.abs(size) / _SIGNED_SCALE) / _SIGNED_STEEP)


def planes(numbers: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Numbers below 2^24 as three arrays of bytes, lowest first: alike bytes together compress better."""
    return {f"{name}{i}": ((numbers >> (8 * i)) & 255).astype(np.uint8) for i in range(3)}
