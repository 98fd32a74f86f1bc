"""An evaluation as text: the table of scores, and below it all that a reader should know."""

from __future__ import annotations

from collections.abc import Sequence

from evaluate.diversity import Diversity
from pipeline.scoring import Evaluation, Scored
from pipeline.tables import (
    Format,
    Table,
    difference_table,
    domain_table,
    percent,
    render,
    score_table,
)


def report(evaluation: Evaluation, columns: Sequence[str], form: Format = "text") -> str:
    """Everything that `pipeline eval` prints, tables in the given form."""
    scored = evaluation.scored
    parts = [
        render(
            score_table(
                {s.source.name: s.scores for s in scored},
                columns,
                {s.source.name: s.intervals for s in scored},
            ),
            form,
        )
    ]
    for one in scored:
        if one.scores.domains:
            title = f"{one.source.name}, by domain" if len(scored) > 1 else "by domain"
            parts.append(_titled(title, domain_table(one.scores, columns), form))
    if any(evaluation.differences.values()):
        title = "paired bootstrap, and p by approximate randomisation"
        parts.append(_titled(title, difference_table(evaluation.differences, columns), form))
    parts.append(render(diversity_table(scored), form))
    notes = _notes(evaluation)
    parts.append("\n".join(f"% {line}" if form == "latex" else line for line in notes))
    return "\n\n".join(parts)


def _titled(title: str, table: Table, form: Format) -> str:
    """The table below its title: in LaTeX a comment, in Markdown a paragraph of its own."""
    comment = "% " if form == "latex" else ""
    gap = "\n\n" if form == "markdown" else "\n"
    return f"{comment}{title}{gap}{render(table, form)}"


def diversity_table(scored: Sequence[Scored]) -> Table:
    """How varied the captions are, one row per source."""
    headings = ["captions", "distinct", "novel", "words", "length", "commonest", "mBLEU-4"]
    rows = [[one.source.name, *_diversity(one.diversity)] for one in scored]
    # A column that says nothing about any source is left out.
    kept = [0, *(i for i in range(1, len(headings) + 1) if any(row[i] for row in rows))]
    return Table(
        headings=tuple(["", *headings][i] for i in kept),
        rows=[tuple(row[i] for i in kept) for row in rows],
    )


def _diversity(found: Diversity) -> list[str]:
    words = f"{found.vocabulary}"
    if found.training_vocabulary:
        words += f" of {found.training_vocabulary}"
    return [
        f"{found.captions}",
        f"{found.distinct}",
        f"{100 * found.novel:.1f} %" if found.novel is not None else "",
        words,
        f"{found.mean_length:.1f}",
        f"{100 * found.commonest_share:.1f} %",
        f"{100 * found.mbleu[-1]:.1f}" if found.mbleu is not None else "",
    ]


def _notes(evaluation: Evaluation) -> list[str]:
    """Lines below the tables; what several sources share is said once."""
    scored = evaluation.scored
    sources: dict[str, list[str]] = {}  # line -> the sources that it is about
    for one in scored:
        for line in _remarks(one):
            sources.setdefault(line, []).append(one.source.name)
    lines = [
        line if len(names) == len(scored) else f"{', '.join(names)}: {line}"
        for line, names in sources.items()
    ]
    if any(one.intervals for one in scored):
        lines.append("± is half of the 95 % bootstrap interval over images")
    lines += dict.fromkeys(f"signature: {one.scores.signature}" for one in scored)
    return lines


def _remarks(one: Scored) -> list[str]:
    lines = [f"{name}: not available: {why}" for name, why in one.scores.unavailable.items()]
    kinds = [
        f"{name.removeprefix('SPICE_')} {percent(value)}"
        for name, value in one.scores.details.items()
        if value is not None
    ]
    if kinds:
        lines.append(f"SPICE by kind: {', '.join(kinds)}")
    unlike = (one.source.decoding or {}).get("unlike_run")
    if unlike:
        lines.append(f"decoded with {'; '.join(unlike)}")
    asked = one.source.constraints
    if asked is not None:
        lines.append(
            f"constraints: {asked['file']} (sha256 {asked['sha256'][:12]}), {asked['satisfy']} of"
            f" an image's or all: {asked['images_with_constraints']:,} of {asked['images']:,}"
            f" images have some, {asked['images_that_hold_them']:,} captions hold them"
        )
    return lines + [f"warning: {warning}" for warning in one.warnings]
