"""Tables of scores as the papers print them: times 100, one decimal, B-1 B-2 B-3 B-4 M R C S.

A `Table` is plain cells; `render` writes it as text, Markdown or LaTeX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evaluate.scores import COLUMNS, Scores
from evaluate.significance import Difference, Interval

Format = Literal["text", "markdown", "latex"]

HEADINGS = dict(zip(COLUMNS, ("B-1", "B-2", "B-3", "B-4", "M", "R", "C", "S"), strict=True))
MISSING = "n/a"
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells of text: the first column names the rows, the others are numbers."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def percent(value: float | None) -> str:
    """A score times 100 with one decimal; "n/a" where there is none."""
    return MISSING if value is None else f"{100 * value:.1f}"


def score_table(
    rows: Mapping[str, Scores],
    columns: Sequence[str] = COLUMNS,
    intervals: Mapping[str, Mapping[str, Interval]] | None = None,
) -> Table:
    """One row per named result and, where given, one of half the interval's width below it."""
    cells: list[tuple[str, ...]] = []
    for name, scores in rows.items():
        cells.append((name, *(percent(scores.corpus.get(c)) for c in columns)))
        widths = (intervals or {}).get(name)
        if widths:
            cells.append(("  95 %", *(_half_width(widths.get(c)) for c in columns)))
    return Table(headings=("", *(HEADINGS[c] for c in columns)), rows=cells)


def domain_table(scores: Scores, columns: Sequence[str] = COLUMNS) -> Table:
    """nocaps: one row per metric, one column per domain, the whole set last."""
    names = [*scores.domains, "overall"]
    values = {**scores.domains, "overall": scores.corpus}
    rows = [(HEADINGS[c], *(percent(values[name].get(c)) for name in names)) for c in columns]
    return Table(headings=("", *(name.removesuffix("-domain") for name in names)), rows=rows)


def difference_table(
    differences: Mapping[str, Mapping[str, Difference]], columns: Sequence[str] = COLUMNS
) -> Table:
    """Per comparison: difference, its interval and p of the paired test."""
    cells: list[tuple[str, ...]] = []
    for name, found in differences.items():
        picked = [found.get(c) for c in columns]
        cells.append((name, *(f"{100 * d.value:+.1f}" if d else MISSING for d in picked)))
        cells.append(("  95 % low", *(f"{100 * d.low:+.1f}" if d else MISSING for d in picked)))
        cells.append(("  95 % high", *(f"{100 * d.high:+.1f}" if d else MISSING for d in picked)))
        cells.append(("  p", *(f"{d.p:.3f}" if d else MISSING for d in picked)))
    return Table(headings=("difference", *(HEADINGS[c] for c in columns)), rows=cells)


def render(table: Table, form: Format = "text") -> str:
    """The table as aligned text, Markdown or LaTeX (booktabs), without a final newline."""
    if form == "markdown":
        return _markdown(table)
    if form == "latex":
        return _latex(table)
    return _text(table)


def _half_width(interval: Interval | None) -> str:
    return MISSING if interval is None else f"±{50 * (interval.high - interval.low):.1f}"


def _text(table: Table) -> str:
    lines = [table.headings, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _markdown(table: Table) -> str:
    ruler = ("---", *("---:" for _ in table.headings[1:]))
    lines = [table.headings, ruler, *table.rows]
    return "\n".join(
        "| " + " | ".join(cell.strip().replace("|", r"\|") for cell in line) + " |"
        for line in lines
    )


def _latex(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        texts = ("".join(_LATEX.get(c, c) for c in cell.strip()) for cell in cells)
        return " & ".join(texts) + r" \\"

    columns = "l" + "r" * (len(table.headings) - 1)
    body = "\n".join(line(row) for row in table.rows)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            line(table.headings),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )
