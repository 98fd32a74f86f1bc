"""The outlines of the shapes, in a circle of radius 1 around the origin, y downwards."""

from __future__ import annotations

import functools
import math

import numpy as np

RING_HOLE = 0.6  # radius of the hole of a ring
# radius of a circle around the middle that is free for another object, of shapes with such room
ROOM = {
    "circle": 0.85,
    "square": 0.78,
    "ring": 0.57,
    "heart": 0.5,
    "triangle": 0.48,
    "diamond": 0.5,
}
_CURVE = 72  # points of a full turn


def _arc(radius: float, start: float, end: float, x: float = 0.0, y: float = 0.0) -> np.ndarray:
    points = max(8, round(_CURVE * abs(end - start) / 360))
    angle = np.radians(np.linspace(start, end, points))
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], axis=1)


def _star() -> np.ndarray:
    angle = np.radians(-90 + 36 * np.arange(10))
    radius = np.where(np.arange(10) % 2 == 0, 1.05, 0.46)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle) + 0.06], axis=1)


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, _CURVE, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x / 16.5, -(y + 2.5) / 15.0], axis=1)


def _moon() -> np.ndarray:
    """A disc less a disc of radius 0.8 whose middle lies 0.55 to the right."""
    offset, inner = 0.55, 0.8
    x = (1 - inner**2 + offset**2) / (2 * offset)
    outer_angle = math.degrees(math.acos(x))
    inner_angle = math.degrees(math.acos((x - offset) / inner))
    outside = _arc(1.0, outer_angle, 360 - outer_angle)
    bite = _arc(inner, 360 - inner_angle, inner_angle, x=offset)
    moon = np.concatenate([outside, bite])
    return moon + np.array([0.18, 0.0])


def _cross() -> np.ndarray:
    a, b = 0.95, 0.34
    corners = [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b)]
    corners += [(b, a), (-b, a), (-b, b), (-a, b), (-a, -b), (-b, -b)]
    return np.array(corners)


def _arrow() -> np.ndarray:
    """Points upwards."""
    corners = [(0, -1.0), (0.82, -0.1), (0.32, -0.1), (0.32, 0.95)]
    return np.array(corners + [(-x, y) for x, y in corners[:0:-1]])


_OUTLINES: dict[str, np.ndarray] = {
    "circle": _arc(1.0, 0, 355),
    "square": 0.86 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]),
    "star": _star(),
    "triangle": 1.1 * np.array([(0, -0.86), (0.9, 0.7), (-0.9, 0.7)]),
    "heart": _heart(),
    "ring": _arc(1.0, 0, 355),
    "cross": _cross(),
    "moon": _moon(),
    "arrow": _arrow(),
    "diamond": np.array([(0, -1.05), (0.74, 0), (0, 1.05), (-0.74, 0)]),
}


def outline(shape: str, tilt: float) -> np.ndarray:
    """Corners (K, 2) of a shape turned by `tilt` degrees; a ring is its outer edge."""
    angle = math.radians(tilt)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return _OUTLINES[shape] @ turn  # (K, 2)


@functools.lru_cache(maxsize=4096)
def extent(shape: str, tilt: float) -> tuple[float, float, float, float]:
    """x1 y1 x2 y2 of the turned outline."""
    corners = outline(shape, tilt)
    (x1, y1), (x2, y2) = corners.min(axis=0), corners.max(axis=0)
    return float(x1), float(y1), float(x2), float(y2)
