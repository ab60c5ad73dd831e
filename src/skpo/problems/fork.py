"""`builtin:fork?routes=3&steps=3&luck=8&seed=0&size=256&split=train`: choose a route, then walk it, then be lucky.

A problem with two routes of three steps, and its only right completion if mark 7 stands for route v:

    3ua+8b*7c-vd+6e-1f+=7   ->   vd+6e-1f+;d3+6=9;e9-1=8;f8+2=0;#80

A start number, and last of all a mark, each one digit; between them each route, a name (u to z) with its labelled operations, modulo 10. The
operand of a route's last step is smudged: it is one of 0 to luck - 1, and a response can only guess it. A response names its
route, copies it out as its plan, then carries the plan out as in `builtin:chain`; the answer is the last two states.

Which route is right depends on the mark alone, by a table (`Fork.table`) that the problem doesn't state. So the first
token decides whether all later work can succeed, while a single verdict says little about it: on the right route, too, at most
one response in `luck` is right. luck=1 smudges nothing.

The answer is drawn first, in shuffled rounds of all that are possible (100 with luck=8), and marks come in rounds too; no guess on
another route gives the right answer. So a constant answer is right in 1 % of the problems, a constant route in 1 / routes.

Splits are decided by a hash of the problem text, as for the chain.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from string import digits

from skpo.errors import ProblemError, unknown
from skpo.problems.base import Problem
from skpo.problems.chain import MAX_TRIES, SPLITS, Chain, apply, below, split_of
from skpo.problems.query import parse_int

MARKS = digits
NAMES = "uvwxyz"
LABELS = "abcdefghijklmnopqrst"
MODULUS = 10
DEFAULTS = {"routes": "3", "steps": "3", "luck": "8", "seed": "0", "size": "256", "split": "train"}

Move = tuple[str, str, int | None]  # label, operation, operand (None: smudged)


@dataclass(frozen=True)
class Parsed:
    """A problem text, taken apart. routes: the moves of each, under its name."""

    mark: str
    start: int
    routes: dict[str, list[Move]]


@dataclass(frozen=True)
class Fork:
    """A family of fork problems: 2 to 6 routes of 2 or more steps each, at most 20 steps in all; `luck` from 1 to 10."""

    routes: int = 3
    steps: int = 3
    luck: int = 8

    def __post_init__(self) -> None:
        if self.routes * self.steps > len(LABELS):
            raise ProblemError(
                f"fork: {self.routes} routes of {self.steps} steps need {self.routes * self.steps} labels; there are "
                f"{len(LABELS)}. Use fewer routes or steps."
            )

    @cached_property
    def chain(self) -> Chain:
        """What a single route is, but for its last step."""
        return Chain(steps=self.steps, modulus=MODULUS)

    @cached_property
    def last_moves(self) -> dict[tuple[int, int], list[tuple[str, int]]]:
        """Moves of the last step from each state to each other one: all of a chain's, or those whose operand may be smudged."""
        if self.luck == 1:
            return self.chain.moves
        moves: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for state in range(MODULUS):
            for sign in "+-":
                for operand in range(self.luck):
                    moves.setdefault((state, apply(state, sign, operand, MODULUS)), []).append((sign, operand))
        return moves

    @cached_property
    def table(self) -> dict[str, str]:
        """The right route of each mark: as even as the numbers allow, in an order without a pattern."""
        rng = random.Random(f"fork/table/{self.routes}")
        shuffled = sorted(MARKS, key=lambda _: rng.random())
        return {mark: NAMES[shuffled.index(mark) % self.routes] for mark in MARKS}

    # --- problems -------------------------------------------------------------------------------------------------

    def draw(self, rng: random.Random, mark: str, answer: tuple[int, int]) -> tuple[str, int] | None:
        """One problem text with this mark and answer, and the right route's last operand; None where the draw came to nothing."""
        start, right, operand = below(rng, MODULUS), self.table[mark], -1
        answers = list(self.last_moves)
        written = []
        for i, name in enumerate(NAMES[: self.routes]):
            target = answer if name == right else answers[below(rng, len(answers))]
            moves = self.chain.walk(rng, start, (target[0], target[0]))
            options = self.last_moves[target]
            if moves is None:
                return None
            moves[-1] = options[below(rng, len(options))]
            if name == right:
                operand = moves[-1][1]
            signs = [f"{sign}{n}" for sign, n in moves[:-1]]
            signs.append(moves[-1][0] if self.luck > 1 else "".join(map(str, moves[-1])))
            labels = LABELS[i * self.steps :]
            written.append(name + "".join(f"{label}{sign}" for label, sign in zip(labels, signs, strict=False)))
        text = f"{start}{''.join(written)}={mark}"
        return None if answer in self._elsewhere(text) else (text, operand)

    def _elsewhere(self, text: str) -> set[tuple[int, int]]:
        """Every answer that faultless work gives on routes that are not the right one."""
        problem, found = self.parse(text), set()
        for name, moves in problem.routes.items():
            for guess in range(self.luck) if name != self.right_route(text) else ():
                _, states = self.chain.walked(problem.start, _filled(moves, guess))
                found.add((states[-2], states[-1]))
        return found

    def texts(self, seed: int | str, split: str = "train") -> Iterator[tuple[str, int]]:
        """Distinct problem texts of one split with the right route's last operand, without end; the same seed always gives the
        same ones in the same order."""
        rng = random.Random(f"fork/{self.routes}/{self.steps}/{self.luck}/{split}/{seed}")
        marks = self._rounds(rng)
        seen: set[str] = set()
        while True:
            for answer in sorted(self.last_moves, key=lambda _: rng.random()):
                mark = next(marks)
                for _ in range(MAX_TRIES):
                    found = self.draw(rng, mark, answer)
                    if found is not None and found[0] not in seen and split_of(found[0]) == split:
                        break
                else:
                    raise ProblemError(
                        f"fork: found only {len(seen)} distinct problems (split {split}). Use more steps, or a smaller size."
                    )
                seen.add(found[0])
                yield found

    @staticmethod
    def _rounds(rng: random.Random) -> Iterator[str]:
        while True:
            yield from sorted(MARKS, key=lambda _: rng.random())

    # --- completions ----------------------------------------------------------------------------------------------

    @staticmethod
    def parse(text: str) -> Parsed:
        """Raises `ProblemError` for anything that is no problem text."""
        if not re.fullmatch(rf"\d(?:[{NAMES}](?:[{LABELS}][-+*]\d)*[{LABELS}][-+*]\d?)+=\d", text):
            raise ProblemError(f'"{text}" is no fork problem. One looks like 3ua+8b*7c-vd+6e-1f+=7.')
        routes: dict[str, list[Move]] = {
            part[0]: [
                (label, sign, int(n) if n else None) for label, sign, n in re.findall(r"([a-t])([-+*])(\d?)", part)
            ]
            for part in re.findall(rf"[{NAMES}][^{NAMES}=]+", text)
        }
        return Parsed(text[-1], int(text[0]), routes)

    def right_route(self, text: str) -> str:
        """The name of the route that the problem's mark stands for."""
        return self.table[text[-1]]

    def pieces(
        self,
        text: str,
        rng: random.Random | None = None,
        *,
        operand: int | None = None,
        noise: float = 0.0,
        doubt: float = 0.0,
    ) -> list[str]:
        """A completion in the pieces that it can be continued after: route name, operations of the plan, steps, answer.

        operand: the guess at a smudged one; None draws it. doubt: probability that the route is drawn from all alike, the
        right one among them. noise: the same for each written result; later steps, and the answer, go on from what was
        written.
        """
        problem, name = self.parse(text), self.right_route(text)
        if rng is not None and rng.random() < doubt:
            name = list(problem.routes)[below(rng, len(problem.routes))]
        if operand is None:
            operand = below(rng, self.luck) if rng is not None else 0
        moves = problem.routes[name]
        plan = [f"{label}{sign}{'' if n is None else n}" for label, sign, n in moves]
        steps, states = self.chain.walked(problem.start, _filled(moves, operand), rng, noise)
        return [name, *plan[:-1], f"{plan[-1]};", *steps, f"#{states[-2]}{states[-1]}"]

    def completion(self, text: str, rng: random.Random | None = None, **options: float | int | None) -> str:
        """Plan, steps and answer, without end-of-sequence; options as in `pieces`."""
        return "".join(self.pieces(text, rng, **options))  # type: ignore[arg-type]

    @staticmethod
    def chosen(text: str, completion: str) -> str | None:
        """The route that a completion, or a segment, is on: its name or first label says it; None where neither is there."""
        for name, moves in Fork.parse(text).routes.items():
            if completion[:1] == name or completion[:1] in {label for label, *_ in moves}:
                return name
        return None


def _filled(moves: list[Move], operand: int) -> list[tuple[str, str, int]]:
    """Moves with a guess in the place of a smudged operand."""
    return [(label, sign, operand if n is None else n) for label, sign, n in moves]


def load_fork(values: dict[str, str], source: str, limit: int | None = None) -> list[Problem]:
    """Problems of `builtin:fork?...`.

    Each has verifier "exact" (the answer is what follows the last `#`) and columns `solution`, its right completion, and
    `route`, the right route's name. A smaller `size` gives the start of a larger one. Raises `ProblemError` for unknown
    or malformed parameters.
    """
    for key in values:
        if key not in DEFAULTS:
            raise ProblemError(f"{source}: {unknown('parameter', key, DEFAULTS)}")
    setting = DEFAULTS | values
    if setting["split"] not in SPLITS:
        raise ProblemError(f"{source}: {unknown('split', setting['split'], SPLITS)}")
    size = parse_int(source, "size", setting["size"], 1, 1_000_000)
    fork = Fork(
        routes=parse_int(source, "routes", setting["routes"], 2, len(NAMES)),
        steps=parse_int(source, "steps", setting["steps"], 2, len(LABELS)),
        luck=parse_int(source, "luck", setting["luck"], 1, 10),
    )
    texts = fork.texts(parse_int(source, "seed", setting["seed"], 0, 2**63), setting["split"])
    problems = []
    for text, operand in islice(texts, min(size, limit or size)):
        solution = fork.completion(text, operand=operand)
        columns = {"solution": solution, "route": fork.right_route(text)}
        answer = solution.rpartition("#")[2]
        problems.append(Problem(prompt=text, answer=answer, verifier="exact", columns=columns))
    return problems
