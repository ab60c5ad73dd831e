"""The rollouts' share of a report: the list of groups, the blocks of details that fit, and an account of what was left out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from skpo.report.blocks import TOKEN_NUMBERS, Block, blocks
from skpo.report.choose import priority, within
from skpo.report.pack import pack
from skpo.report.scan import Groups, Problems, scan
from skpo.report.vocabulary import LocalIds, TokenBytes, find_tokenizer

ROW_BYTES, GROUP_BYTES = 10, 20  #: a row's details, a line of the list: packed, about
TRIAL_TOKENS = 100_000  #: tokens that the cost of a token is measured on
PROBLEM_CHARACTERS, SHORT_PROBLEM = (
    8_000_000,
    400,
)  #: above so many in all, problems are shown by their first 400 characters


@dataclass
class Vocabulary:
    """One tokenizer's tokens, shared by the runs that use it; `decode` is None where a run has none."""

    decode: TokenBytes
    local: LocalIds = field(default_factory=LocalIds)


@dataclass
class RunRollouts:
    """What the page holds of one run's rollouts. `block`, `place` [groups]: where a group's details are, -1: left out."""

    groups: Groups
    vocabulary: int | None
    blocks: list[Block] = field(default_factory=list)
    detailed: int = 0
    with_text: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    @property
    def size(self) -> int:
        return sum(len(b.packed) for b in self.blocks)

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        block = np.full(len(self.groups), -1, dtype=np.int32)
        place = np.full(len(self.groups), -1, dtype=np.int32)
        for number, one in enumerate(self.blocks):
            block[one.groups], place[one.groups] = number, np.arange(len(one.groups))
        return block, place

    def account(self) -> dict[str, Any]:
        """Numbers that the page tells: groups, rollouts and tokens in all, with details, with texts."""
        rows = self.groups.rows
        return {
            "groups": len(self.groups),
            "rollouts": int(rows.sum()),
            "detailed_groups": self.detailed,
            "text_groups": int(self.with_text.sum()),
            "text_rollouts": int(rows[self.with_text].sum()) if len(rows) else 0,
            "unreadable": self.groups.unreadable,
            "blocks": len(self.blocks),
            "vocabulary": self.vocabulary,
        }


class Rollouts:
    """Rollouts of several runs, in at most `room` bytes of base64 (a little more where one group alone is larger)."""

    def __init__(self, folders: Sequence[Path], room: float) -> None:
        self.problems = Problems()
        self.vocabularies: list[Vocabulary] = []
        self._by_content: dict[bytes, int] = {}
        self.runs = [RunRollouts(scan(folder, self.problems), self._vocabulary(folder)) for folder in folders]
        self.shortened = self._shorten()
        left = room - len(pack(self._problem_table(), {})) - GROUP_BYTES * sum(len(r.groups) for r in self.runs)
        order = sorted(self.runs, key=lambda r: int(r.groups.tokens.sum()))
        for i, run in enumerate(order):  # what a small run does not need is the larger ones' to use
            self._fill(run, max(left, 0.0) / (len(order) - i))
            left -= run.size

    def _vocabulary(self, folder: Path) -> int | None:
        """Number of the run's vocabulary; None without a readable tokenizer."""
        path = find_tokenizer(folder)
        if path is None:
            return None
        key = hashlib.sha256(path.read_bytes()).digest()
        if key not in self._by_content:
            try:
                vocabulary = Vocabulary(TokenBytes(path))
            except ValueError:
                return None
            self._by_content[key] = len(self.vocabularies)
            self.vocabularies.append(vocabulary)
        return self._by_content[key]

    def _fill(self, run: RunRollouts, room: float) -> None:
        """Choose the run's groups and pack them; once more, with fewer, if they came out larger than estimated."""
        groups = run.groups
        if not len(groups):
            return
        order = priority(groups)
        rows = within(order, groups.rows * ROW_BYTES, room / 2)
        run.detailed = len(rows)
        room_for_text = room - ROW_BYTES * float(groups.rows[rows].sum())
        taken = order[np.isin(order, rows)]
        cost = self._token_cost(run, taken)
        for share in (0.95, 0.85, 0.6):
            text = within(taken, groups.tokens * cost, share * room_for_text) if room_for_text > 0 else rows[:0]
            run.with_text = np.zeros(len(groups), dtype=bool)
            run.with_text[text] = True
            run.blocks = list(blocks(groups, rows, run.with_text, self._local(run)))
            if run.size <= room:
                return

    def _token_cost(self, run: RunRollouts, order: np.ndarray) -> float:
        """Packed bytes of one token, measured on the first groups to be taken."""
        total = np.cumsum(run.groups.tokens[order])
        trial = np.sort(order[: 1 + int(np.searchsorted(total, TRIAL_TOKENS))])
        chosen = np.zeros(len(run.groups), dtype=bool)
        chosen[trial] = True
        size = sum(len(b.packed) for b in blocks(run.groups, trial, chosen, self._local(run)))
        return size / max(1.0, float(run.groups.tokens[trial].sum()))

    def _local(self, run: RunRollouts) -> LocalIds | None:
        return None if run.vocabulary is None else self.vocabularies[run.vocabulary].local

    def _shorten(self) -> bool:
        """Cut the list's copy of the problems where they are too long in all; True if so."""
        if sum(map(len, self.problems.texts)) <= PROBLEM_CHARACTERS:
            return False
        self.problems.texts = [t if len(t) <= SHORT_PROBLEM else t[:SHORT_PROBLEM] + " …" for t in self.problems.texts]
        return True

    def _problem_table(self) -> dict[str, Any]:
        p = self.problems
        return {"problems": {"ids": p.ids, "texts": p.texts, "answers": p.answers}}

    def index(self) -> str:
        """The packed list of all groups, the problems, and the vocabularies."""
        arrays: dict[str, np.ndarray] = {}
        for i, run in enumerate(self.runs):
            groups = run.groups
            block, place = run.places()
            arrays |= {
                f"r{i}_step": groups.step.astype(np.int32), f"r{i}_problem": groups.problem.astype(np.uint32),
                f"r{i}_rows": groups.rows.astype(np.uint16), f"r{i}_right": groups.right.astype(np.uint16),
                f"r{i}_scored": groups.scored.astype(np.uint16), f"r{i}_reward": groups.reward.astype(np.float32),
                f"r{i}_roles": groups.roles.astype(np.uint8), f"r{i}_block": block, f"r{i}_place": place,
                f"r{i}_text": (run.with_text if len(run.with_text) else np.zeros(len(groups))).astype(np.uint8),
            }  # fmt: skip
        spelled = [v.local.spell(v.decode) for v in self.vocabularies]
        return pack({**self._problem_table(), "vocabularies": spelled, "numbers": ["nll", *TOKEN_NUMBERS]}, arrays)
