"""Makes docs/results.md from comparisons, so that no number in it is typed by hand.

    python -m benchmarks.results                         rebuild docs/results.md from docs/results/
    python -m benchmarks.results family=runs/family ...  first take finished `skpo compare` folders in, under a name

docs/results/NAME/ keeps what a comparison gave: one JSON line per run and the plot. docs/results/results.md.jinja is the
text; `{{ table("NAME") }}`, `{{ command("NAME") }}`, `{{ plot("NAME") }}`, `{{ accuracy("NAME", "variant") }}` and
`{{ difference("NAME", "variant") }}` are filled in. A list of variants after the name makes a table of these, in this order and
with paired differences to the first of them; `{{ plot("NAME", variants, "picture") }}` draws them alone.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import early_decision, fork_routes, segment_use
from skpo.compare import table
from skpo.compare.statistics import Outcome, interval

DOCS = Path(__file__).parent.parent / "docs"
STORE = DOCS / "results"
KEPT = ("step", "tokens_generated_total", "eval_pass_at_1", "entropy", "advantage_zero_rate", "completion_length",
        "grad_norm", "ratio_max", "nonfinite_values", "skipped_in_a_row", "logp_deviation", "upstream_reliability")  # fmt: skip


def take_in(name: str, folder: Path) -> None:
    """Copy a finished comparison's outcomes and plot into docs/results/NAME."""
    from skpo.compare import parse_variants
    from skpo.compare.statistics import outcome

    settings = json.loads((folder / "comparison.json").read_text())
    target = STORE / name
    target.mkdir(parents=True, exist_ok=True)
    found = [
        outcome(settings["variants"][path.parent.parent.name], int(path.parent.name.removeprefix("seed-")), path.parent)
        for path in sorted(folder.glob("*/seed-*/compared.json"))
    ]
    order = [v.name for v in parse_variants(settings["asked"])]
    found.sort(key=lambda o: (order.index(o.variant), o.seed))
    table.write(found, folder)
    shutil.copy(folder / "comparison.png", target / "comparison.png")
    lines = [json.dumps({**asdict(o), "curve": [_kept(r) for r in o.curve]}) for o in found]
    (target / "runs.jsonl").write_text("\n".join(lines) + "\n")
    (target / "settings.json").write_text(json.dumps(settings, indent=1) + "\n")


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in record.items() if k in KEPT}


def outcomes(name: str, variants: Sequence[str] | None = None) -> list[Outcome]:
    """The runs of a stored comparison; of the given variants in their order, or of all. Raises KeyError for an unknown one."""
    records = [json.loads(line) for line in (STORE / name / "runs.jsonl").read_text().splitlines()]
    runs = [Outcome(**{**record, "curve": tuple(record["curve"])}) for record in records]
    if variants is None:
        return runs
    by_name = {v: [o for o in runs if o.variant == v] for v in {o.variant for o in runs}}
    return [o for v in variants for o in by_name[v]]


def markdown(name: str, variants: Sequence[str] | None = None) -> str:
    """The table of a comparison."""
    return table.markdown(outcomes(name, variants)).rstrip()


def plot(name: str, variants: Sequence[str] | None = None, picture: str = "comparison") -> str:
    """The link to a comparison's plot; one of some variants alone is drawn here."""
    if variants is not None:
        table.plot(outcomes(name, variants), STORE / name / f"{picture}.png")
    return f"![{name}: accuracy, entropy, advantage-zero rate and length against tokens](results/{name}/{picture}.png)"


def settings(name: str) -> dict[str, Any]:
    return json.loads((STORE / name / "settings.json").read_text())  # type: ignore[no-any-return]


def command(name: str) -> str:
    """The command that makes a comparison again."""
    s = settings(name)
    more = "".join(f" {o}" for o in s["overrides"])
    seeds = len({o.seed for o in outcomes(name)})  # those that are finished and shown
    return f"skpo compare {s['recipe']}{more} --algorithms {s['asked']} --seeds {seeds} --tokens {s['tokens']} --out runs/{name}"


def accuracy(name: str, variant: str) -> str:
    """Mean and 95 % half-width of a variant's held-out accuracy over seeds."""
    return str(interval([o.accuracy for o in outcomes(name) if o.variant == variant]))


def difference(name: str, variant: str, to: str | None = None) -> str:
    """Paired difference of a variant to another, or to the comparison's first one."""
    compared = table.rows(outcomes(name, None if to is None else [to, variant]))
    return str(next(row.difference for row in compared if row.variant == variant))


def start(name: str) -> str:
    """Held-out accuracy before training, over all runs."""
    return f"{interval([o.curve[0]['eval_pass_at_1'] for o in outcomes(name)]).mean:.3f}"


def largest(name: str, key: str) -> str:
    """Largest value of a metric over all steps of all runs."""
    return f"{max(r[key] for o in outcomes(name) for r in o.curve if r.get(key) is not None):.2g}"


def build() -> Path:
    """Fill the template; returns docs/results.md."""
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    text = environment.from_string((STORE / "results.md.jinja").read_text()).render(
        table=markdown,
        plot=plot,
        command=command,
        accuracy=accuracy,
        difference=difference,
        start=start,
        largest=largest,
        tokens=lambda name: f"{settings(name)['tokens']:,}",
        routes_table=fork_routes.routes_table,
        routes_plot=fork_routes.routes_plot,
        accuracy_table=segment_use.accuracy_table,
        spread_table=segment_use.spread_table,
        signal=segment_use.signal,
        decision_table=early_decision.table,
    )
    path = DOCS / "results.md"
    path.write_text(text)
    return path


def main() -> None:
    for word in sys.argv[1:]:
        name, _, folder = word.partition("=")
        take_in(name, Path(folder))
    print(f"wrote {build()}")


if __name__ == "__main__":
    main()
