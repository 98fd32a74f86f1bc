"""Boxes as a detector with faults would find them in a scene.

It misses objects, finds some twice with other edges, and takes parts of objects and pieces of
background for objects, with lower scores. Its faults follow the dials of the world.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.scenes.scene import Scene, Thing
from pipeline.scenes.words import COLOURS, NOUNS
from pipeline.scenes.world import World

CLASSES = tuple(NOUNS)  # class number -> shape
ATTRIBUTES = tuple(COLOURS)  # attribute number -> colour
_BACKGROUND_OVERLAP = 0.1  # largest share of a background box that an object may cover
_TRIES = 30
_LEAST = 2.0  # pixels of a box's side

Box = tuple[float, float, float, float]


def detect(scene: Scene, rng: np.random.Generator, world: World, side: int) -> dict[str, Any]:
    """`boxes` x1 y1 x2 y2 in pixels inside the image, `classes`, `attributes`, `scores`; by score.

    There is always at least one box.
    """
    rows: list[tuple[float, Box, int, int]] = []
    found = [thing for thing in scene.things if rng.random() >= world.misses]
    for thing in found:
        rows.append(_row(rng, thing, _jittered(rng, thing.box(side), world.jitter / 4), 0.7, 0.99))
        if rng.random() < world.duplicates:
            again = _jittered(rng, thing.box(side), world.jitter)
            rows.append(_row(rng, thing, again, 0.4, 0.75))
    fewest, most = world.distractors
    for _ in range(int(rng.integers(fewest, most + 1))):
        if rng.random() < 0.5:
            thing = scene.things[int(rng.integers(len(scene.things)))]
            rows.append(_row(rng, thing, _part(rng, thing.box(side)), 0.25, 0.55))
        else:
            rows.append(_background(rng, scene, side))
    if not rows:
        rows.append(_row(rng, scene.things[0], scene.things[0].box(side), 0.7, 0.99))
    rows.sort(key=lambda row: -row[0])
    return {
        "boxes": [_inside(box, side) for _, box, _, _ in rows],
        "classes": [shape for _, _, shape, _ in rows],
        "attributes": [colour for _, _, _, colour in rows],
        "scores": [round(score, 4) for score, _, _, _ in rows],
    }


def _row(
    rng: np.random.Generator, thing: Thing, box: Box, low: float, high: float
) -> tuple[float, Box, int, int]:
    shape, colour = CLASSES.index(thing.shape), ATTRIBUTES.index(thing.colour)
    return float(rng.uniform(low, high)), box, shape, colour


def _background(rng: np.random.Generator, scene: Scene, side: int) -> tuple[float, Box, int, int]:
    """A box with next to nothing in it, if one is found; named at random with a low score."""
    boxes = [thing.box(side) for thing in scene.things]
    box = (0.0, 0.0, 0.0, 0.0)
    for _ in range(_TRIES):
        width, height = rng.uniform(0.08, 0.35, size=2) * side
        x, y = rng.uniform(0, side - width), rng.uniform(0, side - height)
        box = (float(x), float(y), float(x + width), float(y + height))
        if all(_common(box, other) <= _BACKGROUND_OVERLAP for other in boxes):
            break
    shape, colour = int(rng.integers(len(CLASSES))), int(rng.integers(len(ATTRIBUTES)))
    return float(rng.uniform(0.2, 0.4)), box, shape, colour


def _part(rng: np.random.Generator, box: Box) -> Box:
    """A corner, edge or middle piece of a box, 40 to 70 % of it each way."""
    (width, height), (left, top) = rng.uniform(0.4, 0.7, size=2), rng.uniform(size=2)
    x1 = box[0] + left * (1 - width) * (box[2] - box[0])
    y1 = box[1] + top * (1 - height) * (box[3] - box[1])
    return (x1, y1, x1 + width * (box[2] - box[0]), y1 + height * (box[3] - box[1]))


def _jittered(rng: np.random.Generator, box: Box, spread: float) -> Box:
    width, height = box[2] - box[0], box[3] - box[1]
    moves = np.clip(rng.normal(scale=spread, size=4), -0.4, 0.4)  # (4,)
    x1, y1, x2, y2 = (np.array(box) + moves * (width, height, width, height)).tolist()
    return (x1, y1, x2, y2)


def _common(box: Box, other: Box) -> float:
    """The share of the first box that the other covers."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    return max(width, 0.0) * max(height, 0.0) / area


def _inside(box: Box, side: int) -> list[float]:
    """The box cut to the image, in hundredths of a pixel, at least `_LEAST` wide and high."""
    edges = [0.0] * 4
    for axis in (0, 1):
        low = min(max(box[axis], 0.0), side - _LEAST)
        high = min(max(box[axis + 2], low + _LEAST), float(side))
        edges[axis], edges[axis + 2] = round(low, 2), round(high, 2)
    return edges
