"""Which relations hold between the objects of a scene, by thresholds on their circles.

With d the distance of two middles, r the half sizes and gap = d - r1 - r2, all in image sides:

    left of, right of   apart by SIGNED_STEP or more across, and SIGNED_SLOPE times more than along
    above, below        the same, along
    near                gap up to NEAR, more or less by the type of the second object
    far from            d of FAR or more
    beside              level within ROW, gap across up to TOUCH
    stacked with        in a column within ROW, gap along up to TOUCH
    inside              later painted, and its circle within the room of the second
    bigger than         RATIO times the size or more
    aligned with        level or in a column within LINE, gap of LINE_GAP or more
    between             off the line of the two others by LINE_OFF at most, in its middle part

An object inside another has no other relation to it than `inside` and, turned, `bigger than`.
Relations that are the same both ways (words.SYMMETRIC) are listed once, with ascending indices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from pipeline.scenes.outlines import ROOM
from pipeline.scenes.world import TYPE_DEVIATION, World

SIGNED_STEP, SIGNED_SLOPE = 0.1, 1.5
NEAR, FAR = 0.09, 0.6
ROW, TOUCH = 0.05, 0.1
RATIO = 1.6
LINE, LINE_GAP = 0.03, 0.1
LINE_OFF, LINE_MIDDLE, LINE_LENGTH = 0.05, (0.3, 0.7), 0.35
SMALL, LARGE = 0.155, 0.265  # below and from here on an object is called small and large

Fact = tuple[str, tuple[int, ...]]  # relation, indices of its objects


class Placed(Protocol):
    """What relations need to know of an object."""

    @property
    def shape(self) -> str: ...
    @property
    def size(self) -> float: ...
    @property
    def x(self) -> float: ...
    @property
    def y(self) -> float: ...


def size_word(shape: str, size: float, world: World) -> str:
    """small, medium or large; the thresholds depend on the shape by `type_spread`."""
    scale = 1 + world.type_spread * TYPE_DEVIATION[shape]
    if size < SMALL * scale:
        return "small"
    return "large" if size >= LARGE * scale else "medium"


def is_inside(first: Placed, second: Placed) -> bool:
    """Whether the first object's circle lies in the free room of the second."""
    room = ROOM.get(second.shape, 0.0) * second.size / 2
    away = math.hypot(first.x - second.x, first.y - second.y)
    return away + first.size / 2 <= room


def facts(things: Sequence[Placed], world: World) -> Iterator[Fact]:
    """Every relation that holds, pairs first."""
    insides = {
        (i, j)
        for j in range(len(things))
        for i in range(j + 1, len(things))
        if is_inside(things[i], things[j])
    }
    for i, j in itertools.permutations(range(len(things)), 2):
        if things[i].size >= RATIO * things[j].size:
            yield "bigger than", (i, j)
        if (i, j) in insides:
            yield "inside", (i, j)
        elif (j, i) not in insides:
            for name in _signed(things[i], things[j]):
                yield name, (i, j)
            if _gap(things[i], things[j]) <= near(things[j].shape, world):
                yield "near", (i, j)
            if i < j:
                for name in _symmetric(things[i], things[j]):
                    yield name, (i, j)
    for j, k in itertools.combinations(range(len(things)), 2):
        for i in range(len(things)):
            among = {i, j, k}
            nested = any({a, b} <= among for a, b in insides)
            if len(among) == 3 and not nested and _between(things[i], things[j], things[k]):
                yield "between", (i, j, k)


def near(shape: str, world: World) -> float:
    """The widest gap to an object of this shape that is called near."""
    return NEAR * (1 + 2 * world.type_spread * TYPE_DEVIATION[shape])


def _gap(a: Placed, b: Placed) -> float:
    return math.hypot(a.x - b.x, a.y - b.y) - (a.size + b.size) / 2


def _signed(a: Placed, b: Placed) -> Iterator[str]:
    across, along = b.x - a.x, b.y - a.y
    if abs(across) >= SIGNED_STEP and abs(across) >= SIGNED_SLOPE * abs(along):
        yield "left of" if across > 0 else "right of"
    if abs(along) >= SIGNED_STEP and abs(along) >= SIGNED_SLOPE * abs(across):
        yield "above" if along > 0 else "below"


def _symmetric(a: Placed, b: Placed) -> Iterator[str]:
    across, along = abs(a.x - b.x), abs(a.y - b.y)
    radii = (a.size + b.size) / 2
    if math.hypot(across, along) >= FAR:
        yield "far from"
    if along <= ROW and across - radii <= TOUCH:
        yield "beside"
    if across <= ROW and along - radii <= TOUCH:
        yield "stacked with"
    if min(across, along) <= LINE and _gap(a, b) >= LINE_GAP:
        yield "aligned with"


def _between(a: Placed, b: Placed, c: Placed) -> bool:
    across, along = c.x - b.x, c.y - b.y
    length = math.hypot(across, along)
    if length < LINE_LENGTH:
        return False
    share = ((a.x - b.x) * across + (a.y - b.y) * along) / length**2
    off = abs((a.x - b.x) * along - (a.y - b.y) * across) / length
    return LINE_MIDDLE[0] <= share <= LINE_MIDDLE[1] and off <= LINE_OFF
