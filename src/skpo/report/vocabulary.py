"""Token ids as the bytes they stand for, by a run's own tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_BYTE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


def find_tokenizer(folder: Path) -> Path | None:
    """`tokenizer.json` of the run's newest checkpoint that has one; None where none has."""
    found = sorted((folder / "checkpoints").glob("step-*/model/tokenizer.json"))
    return found[-1] if found else None


class TokenBytes:
    """What the tokens of a `tokenizer.json` stand for inside a text.

    Raises ValueError where the file can't be read as a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        text = path.read_text(encoding="utf-8")
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path}: {error}") from None
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token: piece.content for token, piece in added.items()}
        self.special = {token for token, piece in added.items() if piece.special}
        self._kind = _kind(json.loads(text).get("decoder"))
        self._from_letter = {letter: byte for byte, letter in enumerate(byte_letters())}

    def __call__(self, token: int) -> bytes:
        """Bytes of one token; those of a broken multi-byte character are not valid UTF-8 by themselves."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return f"<{token}>".encode()
        if self._kind == "bytes" and all(letter in self._from_letter for letter in piece):
            return bytes(self._from_letter[letter] for letter in piece)
        if self._kind == "pieces":
            single = _BYTE.match(piece)
            return bytes([int(single[1], 16)]) if single else piece.replace("▁", " ").encode()
        return piece.encode() if self._kind == "plain" else self._tokenizer.decode([token]).encode()


def _kind(decoder: Any) -> str:
    """How a tokenizer's pieces spell text: `bytes` (one letter a byte), `pieces` (SentencePiece), `plain`, or `other`."""
    names = {d.get("type") for d in _flat(decoder)}
    if "ByteLevel" in names:
        return "bytes"
    if names & {"ByteFallback", "Metaspace"} or any(d.get("pattern") == {"String": "▁"} for d in _flat(decoder)):
        return "pieces"
    return "plain" if names <= {"Fuse", None} else "other"


def _flat(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    inner = decoder.get("decoders")
    return [d for one in inner for d in _flat(one)] if isinstance(inner, list) else [decoder]


def byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each of the 256 bytes: its own where it has one, else one from U+0100 on."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 0x100
    for byte in range(256):
        letters.append(chr(byte if byte in own else spare))
        spare += byte not in own
    return letters


class LocalIds:
    """Numbers the tokens that a report really uses, in the order they are met, so that most need one byte."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._number = np.full(1, -1, dtype=np.int64)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Local numbers, int64, of token ids [n] (negative ids are taken as 0)."""
        ids = np.maximum(ids.astype(np.int64), 0)
        if len(ids) and (top := int(ids.max())) >= len(self._number):
            self._number = np.concatenate([self._number, np.full(top + 1 - len(self._number), -1, dtype=np.int64)])
        for token in np.unique(ids[self._number[ids] < 0]).tolist():
            self._number[token] = len(self.tokens)
            self.tokens.append(token)
        return self._number[ids]

    def spell(self, decode: TokenBytes | None) -> dict[str, Any]:
        """JSON-ready vocabulary: `ids`, `text`, one string a token, or its list of bytes where they are not valid UTF-8, `special` ones."""
        spelled = [decode(t) if decode is not None else f"<{t}>".encode() for t in self.tokens]
        special: Iterable[int] = decode.special if decode is not None else ()
        marked = [i for i, t in enumerate(self.tokens) if t in special]
        return {"ids": self.tokens, "text": [_text(s) for s in spelled], "special": marked}


def _text(spelled: bytes) -> str | list[int]:
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return list(spelled)
