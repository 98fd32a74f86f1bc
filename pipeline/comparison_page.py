"""A comparison as a Markdown page: a table for each dataset, and the command lines behind it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from evaluate.scores import COLUMNS, Scores
from pipeline.comparison import Comparison, DatasetOutcome, Outcome
from pipeline.tables import HEADINGS, MISSING, Table, percent, render


def page(comparison: Comparison, outcomes: Sequence[DatasetOutcome]) -> str:
    """The whole page as Markdown, with a newline at its end."""
    parts = [f"# {comparison.title}"]
    if comparison.about:
        parts.append(comparison.about.strip())
    for outcome in outcomes:
        parts += _dataset(outcome)
    return "\n\n".join(parts) + "\n"


def mean_table(rows: Sequence[Outcome]) -> Table:
    """One row per captioner: mean over seeds, and the sample standard deviation behind it."""
    columns = [c for c in COLUMNS if any(c in s.corpus for r in rows for s in r.scores.values())]
    cells = []
    for row in rows:
        millions = MISSING if row.parameters is None else f"{row.parameters / 1e6:.2f}"
        scored = list(row.scores.values())
        values = [mean_and_spread([s.corpus.get(column) for s in scored]) for column in columns]
        cells.append((row.plans[0].row.name, millions, str(len(scored)), *values))
    headings = ("", "parameters, M", "seeds", *(HEADINGS[c] for c in columns))
    return Table(headings=headings, rows=cells)


def mean_and_spread(values: Sequence[float | None]) -> str:
    """`48.3 ± 0.9`, both times 100; without the spread where there is one value."""
    found = [value for value in values if value is not None]
    if not found:
        return MISSING
    mean = percent(statistics.fmean(found))
    return f"{mean} ± {percent(statistics.stdev(found))}" if len(found) > 1 else mean


def _dataset(outcome: DatasetOutcome) -> list[str]:
    parts = [f"## {outcome.dataset.title}", render(mean_table(outcome.rows), "markdown")]
    parts.append("Mean over the seeds, ± the sample standard deviation.")
    notes = list(dict.fromkeys(_notes(outcome.rows)))
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    lines = list(outcome.preparation)
    for row in outcome.rows:
        lines += row.plans[0].lines
    parts.append(_command_words(outcome))
    parts.append("\n".join(f"    {line}" for line in lines))
    return parts


def _command_words(outcome: DatasetOutcome) -> str:
    seeds = [str(plan.seed) for plan in outcome.rows[0].plans]
    shown = f"The command lines of seed {seeds[0]}"
    if len(seeds) == 1:
        return f"{shown}:"
    return f"{shown}; those of the others have `seed={'`, `seed='.join(seeds[1:])}` for it:"


def _notes(rows: Sequence[Outcome]) -> list[str]:
    notes = []
    for row in rows:
        for scores in row.scores.values():
            notes += _unavailable(scores)
        for seed, reason in row.failures.items():
            notes.append(f"{row.plans[0].row.name}, seed {seed} failed: {' '.join(reason.split())}")
    return notes


def _unavailable(scores: Scores) -> list[str]:
    return [f"{metric} is not available: {why}" for metric, why in scores.unavailable.items()]
