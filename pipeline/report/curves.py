"""Learning curves as SVG, drawn from `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

WIDTH, HEIGHT = 420, 240  # of a chart, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 28  # margins around the axes
POINTS = 300  # of a line; longer ones are averaged down
SMOOTH = 0.05  # width of the running mean over a noisy line, as a share of its points

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart: `kind` is its class in the page's style sheet."""

    points: Sequence[Point]
    kind: str
    dots: bool = False


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line cut off by a kill is passed over.

    An imported run has no such file, and no lines. Raises PipelineError naming the file, and the
    line that is no JSON.
    """
    if not path.exists():
        return []
    try:
        texts = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: cannot be read ({error})") from error
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            raise PipelineError(f"{path}, line {number}: no JSON ({error})") from error
    return lines


def charts(lines: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """(title, SVG) of what was logged: validation by epoch, loss and reward by update."""
    found = []
    if validation := _validation(lines):
        found.append(("Validation CIDEr-D by epoch", line_chart(validation, best=True)))
    if loss := _logged(lines, "xe", "loss"):
        found.append(
            ("Cross-entropy loss by update", line_chart([Line(points=thinned(loss), kind="xe")]))
        )
    if reward := _logged(lines, "scst", "reward"):
        points = thinned([(x, 100 * y) for x, y in reward])
        mean = Line(points=running_mean(points), kind="scst")
        drawn = [Line(points=points, kind="scst pale"), mean]
        found.append(("Self-critical reward (CIDEr-D) by update", line_chart(drawn)))
    return found


def _validation(lines: Sequence[dict[str, Any]]) -> list[Line]:
    """A line per stage, epochs counted through."""
    stages: dict[str, list[Point]] = {"xe": [], "scst": []}
    logged = [line for line in lines if "validation" in line]
    for epoch, line in enumerate(logged, 1):
        stages[line["stage"]].append((float(epoch), 100 * line["validation"]["CIDEr"]))
    return [
        Line(points=points, kind=stage, dots=len(logged) <= 60)
        for stage, points in stages.items()
        if points
    ]


def _logged(lines: Sequence[dict[str, Any]], stage: str, key: str) -> list[Point]:
    return [
        (float(line["step"]), float(line[key]))
        for line in lines
        if line["stage"] == stage and key in line
    ]


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most `POINTS` points, each the mean of its neighbours."""
    size = max(1, -(-len(points) // POINTS))
    chunks = [points[i : i + size] for i in range(0, len(points), size)]
    return [(chunk[-1][0], sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def running_mean(points: Sequence[Point]) -> list[Point]:
    """Each point as the mean of those around it."""
    reach = max(1, round(len(points) * SMOOTH / 2))
    means = []
    for place, (x, _) in enumerate(points):
        around = [y for _, y in points[max(0, place - reach) : place + reach + 1]]
        means.append((x, sum(around) / len(around)))
    return means


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) from below `low` to above `high`."""
    rough = (high - low) / wanted or abs(high) / wanted or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, max(last, first + 1) + 1)]


def line_chart(lines: Sequence[Line], best: bool = False) -> str:
    """Lines over two labelled axes; with `best` the highest point carries its value."""
    every = [point for line in lines for point in line.points]
    across = ticks(min(x for x, _ in every), max(x for x, _ in every), 5)
    up = ticks(min(y for _, y in every), max(y for _, y in every))
    x0, x1 = min(x for x, _ in every), max(x for x, _ in every)

    def place(x: float, y: float) -> Point:
        share = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        rise = (y - up[0]) / (up[-1] - up[0])
        return (
            LEFT + share * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - rise * (HEIGHT - TOP - BOTTOM),
        )

    marks = []
    for value in up:
        _, y = place(x0, value)
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(_text(LEFT - 8, y + 4, "end", f"{value:,g}"))
    for value in across:
        if x0 <= value <= x1 and value == int(value):
            marks.append(_text(place(value, up[0])[0], HEIGHT - 8, "middle", f"{value:,g}"))
    for line in lines:
        placed = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        marks.append(f'<polyline class="{line.kind}" points="{path}"/>')
        if line.dots:
            dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed)
            marks.append(f'<g class="{line.kind}">{"".join(dots)}</g>')
    if best:
        marks.append(_best(every, place))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(marks)}</svg>'


def _best(points: Sequence[Point], place: Any) -> str:
    top = max(points, key=lambda point: point[1])
    x, y = place(*top)
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
    middle = min(max(x, LEFT + 30), WIDTH - RIGHT - 30)  # so that the label stays inside
    above = y - 12 if y - 12 > TOP else y + 22
    return ring + _text(middle, above, "middle", f"best {top[1]:.1f}", "best")


def _text(x: float, y: float, anchor: str, text: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
