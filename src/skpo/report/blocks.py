"""Details of groups in blocks that the page unpacks one at a time: rows, contexts, tokens with their numbers, or texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.report.pack import pack, planes, positive_codes, signed_codes
from skpo.report.scan import Groups, floats, lists, read_columns, role_numbers
from skpo.report.vocabulary import LocalIds

if TYPE_CHECKING:
    import pyarrow as pa

MOST_TOKENS, MOST_ROWS = 150_000, 4096  #: of one block
TOKEN_NUMBERS = ("entropy", "log_ratio", "token_advantage")
_ROWS = ("role", "chosen", "score", "reward", "advantage", "baseline", "finished", "stop_position", "version", "info")
_TEXTS = ("context", "text", "tokens", "logp", *TOKEN_NUMBERS)
_WIDTH = {"nll": "f4", "score": "f4", "reward": "f4", "advantage": "f4", "baseline": "f4", "stop": "f4", "scale": "f4"}


@dataclass(frozen=True)
class Block:
    """A packed block and the groups in it, in order."""

    groups: list[int]
    packed: str


@dataclass(frozen=True)
class Piece:
    """What one group adds to a block: row arrays, token arrays, context ids, and JSON for texts and notes."""

    rows: dict[str, np.ndarray]
    tokens: dict[str, np.ndarray]
    contexts: list[np.ndarray]
    infos: list[str | None]
    texts: list[str]


def blocks(groups: Groups, wanted: np.ndarray, with_text: np.ndarray, local: LocalIds | None) -> Iterator[Block]:
    """Blocks of the wanted groups, in order.

    wanted: indices of groups, ascending. with_text: bool [groups], whose texts are wanted as well. local: numbers token ids; None
    where there is no tokenizer: texts are then kept as they were logged, without tokens.
    """
    for texts in (True, False):
        held: list[int] = []
        pieces: list[Piece] = []
        size = rows = 0
        for group, piece in _pieces(groups, wanted[with_text[wanted] == texts], texts, local):
            held.append(group)
            pieces.append(piece)
            size, rows = size + int(groups.tokens[group]), rows + int(groups.rows[group])
            if (texts and size >= MOST_TOKENS) or rows >= MOST_ROWS:
                yield Block(held, _join(pieces, texts))
                held, pieces, size, rows = [], [], 0, 0
        if held:
            yield Block(held, _join(pieces, texts))


def _pieces(groups: Groups, wanted: np.ndarray, texts: bool, local: LocalIds | None) -> Iterator[tuple[int, Piece]]:
    """Pieces of groups, each file read once."""
    file = groups.file[wanted]
    for number in np.unique(file).tolist():
        columns = (*_ROWS, *_TEXTS) if texts else (*_ROWS, "logp")
        step = _Step(read_columns(groups.paths[number], columns), texts, local)
        for group in wanted[file == number].tolist():
            start = int(groups.start[group])
            yield group, step.piece(start, start + int(groups.rows[group]))


class _Step:
    """One step's file as arrays, from which groups are cut."""

    def __init__(self, table: pa.Table, texts: bool, local: LocalIds | None) -> None:
        self.texts, self.local = texts, local
        self.logp, self.at = lists(table, "logp")
        self.logp = self.logp.astype(np.float64)
        self.rows = {
            "role": role_numbers(table).astype(np.uint8),
            "chosen": _flags(table, "chosen"),
            "finished": _flags(table, "finished"),
            "length": np.diff(self.at).astype(np.uint32),
            "nll": _means(-self.logp, self.at),
            **{name: floats(table, name) for name in ("score", "reward", "advantage", "baseline")},
            "stop": floats(table, "stop_position"),
        }
        self.info: list[str | None] = table["info"].to_pylist() if "info" in table.column_names else []
        self.text: list[str] = table["text"].to_pylist() if texts and local is None else []
        if texts and local is not None:
            self.ids, self.ids_at = lists(table, "tokens")
            self.contexts, self.contexts_at = lists(table, "context")
            self.numbers = {name: lists(table, name) for name in TOKEN_NUMBERS}

    def piece(self, start: int, stop: int) -> Piece:
        rows = {name: values[start:stop].astype(_WIDTH.get(name, values.dtype)) for name, values in self.rows.items()}
        infos = self.info[start:stop] or [None] * (stop - start)
        if not self.texts:
            return Piece(rows, {}, [], infos, [])
        if self.local is None:
            return Piece(rows, {}, [], infos, [text or "" for text in self.text[start:stop]])
        place, contexts = self._contexts(start, stop)
        rows["context"] = place
        rows["scale"] = self._scales(start, stop).astype("f4")
        ids = self.ids[self.ids_at[start] : self.ids_at[stop]]
        tokens = planes(self.local(ids), "id") | self._token_numbers(start, stop, rows["scale"])
        return Piece(rows, tokens, contexts, infos, [])

    def _contexts(self, start: int, stop: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """(which context each row has, the distinct ones in local ids)."""
        assert self.local is not None
        seen: dict[bytes, int] = {}
        distinct: list[np.ndarray] = []
        place: list[int] = []
        for row in range(start, stop):
            ids = self.contexts[self.contexts_at[row] : self.contexts_at[row + 1]]
            number = seen.setdefault(ids.tobytes(), len(seen))
            if number == len(distinct):
                distinct.append(self.local(ids))
            place.append(number)
        return np.array(place, dtype=np.uint16), distinct

    def _scales(self, start: int, stop: int) -> np.ndarray:
        """Largest absolute token advantage of each row, 0 where it has none."""
        values, at = self.numbers["token_advantage"]
        return np.array(
            [np.max(np.abs(np.nan_to_num(values[at[i] : at[i + 1]])), initial=0.0) for i in range(start, stop)],
            dtype=np.float64,
        )

    def _token_numbers(self, start: int, stop: int, scale: np.ndarray) -> dict[str, np.ndarray]:
        """One byte per token and number; 255 over rows that lack a number. A number that the whole file lacks is left out."""
        out = {"nll": positive_codes(-self.logp[self.at[start] : self.at[stop]])}
        for name, (values, at) in self.numbers.items():
            if not len(values):
                continue
            codes = np.full(int(self.at[stop] - self.at[start]), 255, dtype=np.uint8)
            for i in range(start, stop):
                own = values[at[i] : at[i + 1]].astype(np.float64)
                if len(own) == self.at[i + 1] - self.at[i]:
                    begin = int(self.at[i] - self.at[start])
                    codes[begin : begin + len(own)] = _codes(name, own, float(scale[i - start]))
            out[name] = codes
        return out


def _codes(name: str, values: np.ndarray, scale: float) -> np.ndarray:
    if name == "entropy":
        return positive_codes(values)
    if name == "log_ratio":
        return signed_codes(values)
    share = np.rint(127 * values / scale) if scale > 0 else np.zeros(len(values))
    return np.where(np.isfinite(share), 127 + np.clip(np.nan_to_num(share), -127, 127), 255).astype(np.uint8)


def _join(pieces: Sequence[Piece], texts: bool) -> str:
    """One packed block. `group_rows`, `group_contexts` and `context_length` say how its arrays fall into groups."""
    first = pieces[0]
    arrays: dict[str, np.ndarray] = {
        f"row_{name}": np.concatenate([p.rows[name] for p in pieces]) for name in first.rows
    }
    arrays["group_rows"] = np.array([len(p.infos) for p in pieces], dtype=np.uint32)
    contexts = [c for p in pieces for c in p.contexts]
    if contexts:
        arrays["group_contexts"] = np.array([len(p.contexts) for p in pieces], dtype=np.uint32)
        arrays["context_length"] = np.array([len(c) for c in contexts], dtype=np.uint32)
        arrays |= planes(np.concatenate(contexts).astype(np.int64), "context")
    for name in dict.fromkeys(name for p in pieces for name in p.tokens):
        arrays[f"token_{name}"] = np.concatenate(
            [p.tokens.get(name, np.full(int(p.rows["length"].sum()), 255, dtype=np.uint8)) for p in pieces]
        )
    header: dict[str, Any] = {"infos": _infos([i for p in pieces for i in p.infos])}
    if texts and first.texts:
        header["texts"] = [t for p in pieces for t in p.texts]
    return pack(header, arrays)


def _infos(infos: list[str | None]) -> dict[str, Any]:
    """Notes of rows, each distinct one once: `distinct`, and `of`, its index per row (-1: none)."""
    distinct = {text: i for i, text in enumerate(dict.fromkeys(i for i in infos if i))}
    return {"distinct": list(distinct), "of": [-1 if not i else distinct[i] for i in infos]}


def _flags(table: pa.Table, name: str) -> np.ndarray:
    return table[name].fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)


def _means(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Mean of each row's values; NaN for an empty row or one with a value that is not finite."""
    good = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(good, values, 0.0))])
    bad = np.concatenate([[0], np.cumsum(~good)])
    length, broken = np.diff(at), bad[at[1:]] - bad[at[:-1]] > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((length > 0) & ~broken, (total[at[1:]] - total[at[:-1]]) / length, np.nan)
