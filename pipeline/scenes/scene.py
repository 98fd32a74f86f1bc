"""One scene: its objects, drawn from the world by seed and number alone.

Lengths are shares of the image's side, x to the right, y downwards. Objects stand in the order in
which they are painted, so a later one covers an earlier one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import PipelineError
from pipeline.scenes.outlines import ROOM, extent
from pipeline.scenes.relations import Fact, facts, size_word
from pipeline.scenes.words import COLOURS, NOUNS, PARTNERS, TEXTURES
from pipeline.scenes.world import TYPE_DEVIATION, World, frequencies

BACKDROPS = ("sand", "mist", "sage", "blush", "lilac", "stone")
TINY = (3 / 112, 8 / 112)  # sizes of tiny objects; below the upper one all are plain
_SIZES = ((0.085, 0.14), (0.17, 0.245), (0.29, 0.42))  # of small, medium and large objects
_SIZE_CHANCES = (0.25, 0.4, 0.35)
_LARGEST = 0.5
_TILT = 12.0  # degrees to either side
_MARGIN = 0.012
_HOST = 0.24  # smallest size of an object that can hold another
_TRIES, _SHRINK = 40, 0.85
_STREAMS = ("scene", "look", "picture", "captions", "detections")


@dataclass(frozen=True, kw_only=True)
class Thing:
    """An object of a scene: what it is, and where."""

    shape: str
    colour: str
    texture: str
    size: float  # width of the shape's circle
    x: float  # its middle
    y: float
    tilt: float = 0.0  # degrees, counter-clockwise
    word: str = ""  # small, medium or large, as seen for its shape

    @property
    def attributes(self) -> frozenset[str]:
        """Its colour, texture and size word."""
        return frozenset((self.colour, self.texture, self.word))

    def box(self, side: float = 1.0) -> tuple[float, float, float, float]:
        """x1 y1 x2 y2 of what is drawn, in an image of so many pixels."""
        x1, y1, x2, y2 = extent(self.shape, self.tilt)
        radius = self.size / 2
        edges = (self.x + radius * x1, self.y + radius * y1)
        ends = (self.x + radius * x2, self.y + radius * y2)
        return edges[0] * side, edges[1] * side, ends[0] * side, ends[1] * side


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The truth about one image."""

    id: str
    things: tuple[Thing, ...]
    facts: tuple[Fact, ...]  # every relation that holds: name, indices into `things`
    backdrop: str
    light: tuple[float, float, float]  # gains of red, green and blue

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and dicts; `from_dict` reads them back."""
        things = [
            {k: round(v, 6) if isinstance(v, float) else v for k, v in vars(thing).items()}
            for thing in self.things
        ]
        return {
            "id": self.id,
            "objects": things,
            "relations": [[name, *objects] for name, objects in self.facts],
            "backdrop": self.backdrop,
            "light": [round(gain, 6) for gain in self.light],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Scene:
        """A scene of `to_dict`'s form. Raises PipelineError naming what is missing."""
        fields = [field.name for field in dataclasses.fields(Thing)]
        try:
            return cls(
                id=str(content["id"]),
                things=tuple(Thing(**{k: one[k] for k in fields}) for one in content["objects"]),
                facts=tuple((row[0], tuple(row[1:])) for row in content["relations"]),
                backdrop=content["backdrop"],
                light=tuple(content["light"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise PipelineError(
                f"no scene: {error!r}, wanted what `pipeline scenes` wrote"
            ) from error


def generator(seed: int, index: int, stream: str) -> np.random.Generator:
    """The random numbers of one image for one purpose, independent of all others."""
    return np.random.default_rng((seed, index, _STREAMS.index(stream)))


def draw_scene(seed: int, index: int, world: World) -> Scene:
    """Scene `index` of a world; the same for the same arguments, whatever else is drawn."""
    things = tuple(_things(generator(seed, index, "scene"), world))
    look = generator(seed, index, "look")
    backdrop = BACKDROPS[look.integers(len(BACKDROPS))]
    spread = look.normal(size=4)  # of the three colours, and of all together
    gains = np.exp(world.lighting * (0.07 * spread[:3] + 0.1 * spread[3]))
    return Scene(
        id=f"scene_{index:06d}",
        things=things,
        facts=tuple(facts(things, world)),
        backdrop=backdrop,
        light=(float(gains[0]), float(gains[1]), float(gains[2])),
    )


def _things(rng: np.random.Generator, world: World) -> list[Thing]:
    looks = _looks(rng, world)
    looks.sort(key=lambda thing: -thing.size)
    placed: list[Thing] = []
    for thing in looks:
        host = _host(rng, placed, world)
        if host is not None:
            placed.append(_into(rng, thing, host))
        else:
            placed.append(_put(rng, thing, placed, world))
    return [_named(thing, world) for thing in placed]


def _count(rng: np.random.Generator, world: World) -> int:
    fewest, most = world.objects
    share = (world.mean_objects - fewest) / (most - fewest) if most > fewest else 0.0
    if share in (0.0, 1.0):
        return fewest + round(share * (most - fewest))
    return fewest + int(rng.binomial(most - fewest, rng.beta(6 * share, 6 * (1 - share))))


def _looks(rng: np.random.Generator, world: World) -> list[Thing]:
    """The objects without their places."""
    shapes, colours = list(NOUNS), list(COLOURS)
    shape_chances, colour_chances = frequencies(world)
    partners = {a: b for pair in PARTNERS for a, b in (pair, pair[::-1])}
    found: list[Thing] = []
    for _ in range(_count(rng, world)):
        earlier = found[rng.integers(len(found))] if found else None
        shape = shapes[rng.choice(len(shapes), p=shape_chances)]
        colour = colours[rng.choice(len(colours), p=colour_chances)]
        texture = list(TEXTURES)[rng.integers(1, 3) if rng.random() < world.textured else 0]
        low, high = TINY if rng.random() < world.tiny else _SIZES[rng.choice(3, p=_SIZE_CHANCES)]
        size = rng.uniform(low, high)
        copies, follows = rng.random() < world.look_alikes, rng.random() < world.co_occurrence
        if low != TINY[0]:
            size = min(size * (1 + world.type_spread * TYPE_DEVIATION[shape]), _LARGEST)
        if earlier is not None and copies:
            shape, colour, texture = earlier.shape, earlier.colour, earlier.texture
            size = min(earlier.size * rng.uniform(0.93, 1.07), _LARGEST)
        elif earlier is not None and follows:
            shape = partners[earlier.shape]
        tilt = rng.uniform(-_TILT, _TILT)
        found.append(
            Thing(shape=shape, colour=colour, texture=texture, size=size, x=0.5, y=0.5, tilt=tilt)
        )
    return found


def _named(thing: Thing, world: World) -> Thing:
    texture = thing.texture if thing.size > TINY[1] else "plain"
    word = size_word(thing.shape, thing.size, world)
    return dataclasses.replace(thing, texture=texture, word=word)


def _host(rng: np.random.Generator, placed: Sequence[Thing], world: World) -> Thing | None:
    if rng.random() >= world.inside:
        return None
    free = [
        thing
        for thing in placed
        if thing.shape in ROOM
        and thing.size >= _HOST
        and not any(_covers(other, thing, 0.0) for other in placed if other is not thing)
    ]
    return free[rng.integers(len(free))] if free else None


def _into(rng: np.random.Generator, thing: Thing, host: Thing) -> Thing:
    room = ROOM[host.shape] * host.size  # width of the circle that is free inside
    size = min(thing.size, room * rng.uniform(0.55, 0.9))
    away, angle = rng.uniform(0, (room - size) / 2) * 0.9, rng.uniform(0, 2 * math.pi)
    x, y = host.x + away * math.cos(angle), host.y + away * math.sin(angle)
    others = [colour for colour in COLOURS if colour != host.colour]
    other = others[rng.integers(len(others))]
    colour = other if thing.colour == host.colour else thing.colour  # else it could not be seen
    return dataclasses.replace(thing, size=size, x=x, y=y, colour=colour)


def _put(rng: np.random.Generator, thing: Thing, placed: Sequence[Thing], world: World) -> Thing:
    """The object at a free place; smaller when there is none."""
    size = thing.size
    while True:
        margin = size / 2 * 1.1 + _MARGIN
        for _ in range(_TRIES):
            if placed and rng.random() < world.arranged:
                x, y = _arranged(rng, size, placed)
            else:
                x, y = rng.uniform(margin, 1 - margin), rng.uniform(margin, 1 - margin)
            tried = dataclasses.replace(thing, size=size, x=x, y=y)
            within = margin <= x <= 1 - margin and margin <= y <= 1 - margin
            if within and not any(_covers(tried, other, world.overlap) for other in placed):
                return tried
        size *= _SHRINK


def _arranged(
    rng: np.random.Generator, size: float, placed: Sequence[Thing]
) -> tuple[float, float]:
    """A place beside, above or below, in line with, or between earlier objects."""
    anchor = placed[int(rng.integers(len(placed)))]
    kind = rng.integers(4)
    if kind == 3 and len(placed) > 1:
        other = placed[int(rng.integers(len(placed)))]
        share = rng.uniform(0.4, 0.6)
        x = anchor.x + share * (other.x - anchor.x) + rng.uniform(-0.02, 0.02)
        return x, anchor.y + share * (other.y - anchor.y) + rng.uniform(-0.02, 0.02)
    step = (anchor.size + size) / 2 + (
        rng.uniform(0.01, 0.07) if kind < 2 else rng.uniform(0.12, 0.45)
    )
    along, across = step * rng.choice((-1, 1)), rng.uniform(-0.02, 0.02)
    upright = kind == 1 or (kind == 2 and rng.random() < 0.5)
    dx, dy = (across, along) if upright else (along, across)
    return anchor.x + dx, anchor.y + dy


def _covers(one: Thing, other: Thing, share: float) -> bool:
    """Whether their boxes meet in more than a share of the smaller one."""
    a, b = one.box(), other.box()
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return False
    smaller = min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1]))
    return width * height > share * smaller
