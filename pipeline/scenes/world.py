"""The dials of the world from which scenes are drawn.

The defaults are the fixed default world: numbers from different dials are not comparable with
it. Fix the generator before training any proposed model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from extract.nearest import hint
from pipeline.errors import PipelineError
from pipeline.scenes.words import COLOURS, NOUNS

_MAX_OBJECTS = 20


@dataclass(frozen=True, kw_only=True)
class World:
    """How scenes, pictures, captions and detections are drawn. Shares and chances are 0 to 1.

    Raises PipelineError naming the dial, the value found and the value wanted.
    """

    # What is in a scene. Lengths are shares of the image's side.
    objects: tuple[int, int] = (2, 12)  # fewest and most objects
    mean_objects: float = 5.0  # their mean, between the two; the spread is wide
    long_tail: float = 0.7  # frequency of the n-th shape goes as n^-long_tail; 0: all alike
    co_occurrence: float = 0.3  # chance that an object's shape is the partner of an earlier one's
    look_alikes: float = 0.2  # chance that an object copies shape, colour and texture of another
    tiny: float = 0.06  # chance that an object is 3 to 8 pixels in a picture of 112
    textured: float = 0.4  # chance of stripes or dots (a tiny object is always plain)
    overlap: float = 0.12  # largest share of the smaller object's box that another may cover
    inside: float = 0.12  # chance that an object is put inside a large earlier one
    arranged: float = 0.3  # chance that it is put beside, above, in line with or between others
    type_spread: float = 0.2  # how far `near` and size words depend on the shape; 0: not at all
    # How it looks.
    lighting: float = 0.5  # spread of the light's colour and strength over images; 0: always white
    # What is said of it.
    captions: int = 5  # captions of an image
    clauses: tuple[float, float, float] = (0.45, 0.4, 0.15)  # weights of 1, 2 and 3 clauses
    longest: int = 19  # most words of a caption; a clause that goes beyond is left out
    relations: float = 0.75  # chance that a clause states a relation, else that something is there
    signed: float = 0.5  # share of signed relations (left, right, above, below) among them
    pronouns: float = 0.6  # chance that a later clause points back: it, another, the other one
    synonyms: float = 0.15  # chance of another word than the common one
    attributes: tuple[float, float, float] = (0.8, 0.4, 0.5)  # chance to say colour, size, texture
    focus: float = 3.0  # mention goes as (size x nearness to the middle)^focus; 0: all alike
    wander: float = 0.2  # random part of what is mentioned, as a spread of the log weight
    held_out: tuple[str, ...] = ()  # shapes that no training caption mentions
    # What a detector finds.
    misses: float = 0.05  # chance that an object has no box
    duplicates: float = 0.1  # chance that a found object has a second, jittered box
    jitter: float = 0.1  # spread of a jittered edge, as a share of the box's side
    distractors: tuple[int, int] = (2, 6)  # fewest and most boxes of background or of parts

    def __post_init__(self) -> None:
        for name in _SHARES:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise PipelineError(f"{name} is {value}, wanted a share from 0 to 1")
        for name in ("long_tail", "lighting", "focus", "wander"):
            value = getattr(self, name)
            if not (0 <= value and math.isfinite(value)):
                raise PipelineError(f"{name} is {value}, wanted 0 or more")
        if self.overlap > 0.5:
            raise PipelineError(f"overlap is {self.overlap}, wanted at most 0.5")
        if self.type_spread > 0.4:
            raise PipelineError(f"type_spread is {self.type_spread}, wanted at most 0.4")
        if self.jitter > 0.3:
            raise PipelineError(f"jitter is {self.jitter}, wanted at most 0.3")
        fewest, most = self.objects
        if not 1 <= fewest <= most <= _MAX_OBJECTS:
            raise PipelineError(f"objects is {self.objects}, wanted 1 to {_MAX_OBJECTS}, ascending")
        if not fewest <= self.mean_objects <= most:
            raise PipelineError(
                f"mean_objects is {self.mean_objects}, wanted it within objects, {fewest} to {most}"
            )
        if not 0 <= self.distractors[0] <= self.distractors[1] <= 50:
            raise PipelineError(f"distractors is {self.distractors}, wanted 0 to 50, ascending")
        if min(self.clauses) < 0 or not 0 < sum(self.clauses) < math.inf:
            raise PipelineError(f"clauses is {self.clauses}, wanted weights, not all 0")
        if not all(0 <= share <= 1 for share in self.attributes):
            raise PipelineError(f"attributes is {self.attributes}, wanted shares from 0 to 1")
        if self.captions < 1:
            raise PipelineError(f"captions is {self.captions}, wanted 1 or more")
        if self.longest < 16:
            raise PipelineError(f"longest is {self.longest}, wanted room for a clause, 16 or more")
        for shape in self.held_out:
            if shape not in NOUNS:
                raise PipelineError(f"held_out: unknown shape {shape!r}{hint(shape, NOUNS)}")


_SHARES = (
    *("co_occurrence", "look_alikes", "tiny", "textured", "overlap", "inside", "arranged"),
    *("type_spread", "relations", "signed", "pronouns", "synonyms"),
    *("misses", "duplicates", "jitter"),
)

# How the size and the nearness of a shape deviate from the average shape's, in type spreads.
TYPE_DEVIATION: dict[str, float] = {
    shape: 2 * (place * 7 % len(NOUNS)) / (len(NOUNS) - 1) - 1 for place, shape in enumerate(NOUNS)
}
COLOUR_TAIL = 0.5  # the n-th colour's frequency goes as n^-(long_tail x this)


def frequencies(world: World) -> tuple[list[float], list[float]]:
    """The chances of the shapes and of the colours, in the order of their tables."""
    shapes = [(n + 1.0) ** -world.long_tail for n in range(len(NOUNS))]
    colours = [(n + 1.0) ** -(world.long_tail * COLOUR_TAIL) for n in range(len(COLOURS))]
    return [s / sum(shapes) for s in shapes], [c / sum(colours) for c in colours]
