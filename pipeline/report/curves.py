"""Learning curves as SVG, drawn from `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 52, 28  # of a chart, in SVG units
POINTS = 300  # of a line; longer ones are averaged down


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line cut off by a kill is passed over."""
    lines = []
    for text in path.read_text(encoding="utf-8").split("\n")[:-1]:
        lines.append(json.loads(text))
    return lines


def charts(lines: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """(title, SVG) of what was logged: validation, loss per stage, reward."""
    validation, boundaries, count = [], [], 0
    for line in lines:
        if "validation" in line:
            count += 1
            validation.append((float(count), 100 * line["validation"]["CIDEr"]))
            boundaries.append(line["stage"])
    found = [("Validation CIDEr-D by epoch", line_chart(validation))] if validation else []
    for stage, name in (("xe", "Cross-entropy loss"), ("scst", "Self-critical reward (CIDEr-D)")):
        key = "loss" if stage == "xe" else "reward"
        points = [
            (float(line["step"]), float(line[key]))
            for line in lines
            if line["stage"] == stage and key in line
        ]
        if points:
            found.append((f"{name} by update", line_chart(thinned(points))))
    return found


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` points, each the mean of its neighbours."""
    size = max(1, -(-len(points) // POINTS))
    chunks = [points[i : i + size] for i in range(0, len(points), size)]
    return [(chunk[-1][0], sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def line_chart(points: Sequence[tuple[float, float]]) -> str:
    """One line with two labelled axes."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x0, x1 = min(xs), max(xs)
    low, high = min(ys), max(ys)
    low, high = (low - 1, high + 1) if low == high else (low, high)
    spread = (x1 - x0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x0) / spread * (WIDTH - LEFT - 12),
            12 + (high - y) / (high - low) * (HEIGHT - BOTTOM - 12),
        )

    placed = [place(x, y) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    marks = []
    for step in range(5):
        value = low + (high - low) * step / 4
        _, y = place(x0, value)
        marks.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        marks.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value in dict.fromkeys((x0, (x0 + x1) // 2, x1)):
        x, _ = place(value, low)
        marks.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{value:g}</text>')
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed[:60])
    dots = dots if len(placed) <= 60 else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(marks)}'
        f'<polyline points="{path}"/>{dots}</svg>'
    )
