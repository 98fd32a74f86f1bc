"""Where captions of scenes are right: by the size of objects, by relation, and as a whole.

`truth.scene_f1` compares facts one by one and knows objects by their shape alone. Here a caption's
mentions are matched with the objects of the scene by all that is said of them, so that it counts
which of two stars was meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import PipelineError
from pipeline.scenes.grammar import Meaning, Mention, ParseError, parse
from pipeline.scenes.scene import TINY, Scene, Thing
from pipeline.scenes.words import ANY_SHAPE, RELATIONS, SIZES, SYMMETRIC

BINS = ("tiny", *SIZES)  # size bins; a tiny object is in no other bin

Fact = tuple[str, tuple[int, ...]]  # relation, indices of its objects in the scene


@dataclass(frozen=True, kw_only=True)
class Share:
    """`hit` of `all`."""

    hit: int
    all: int

    @property
    def value(self) -> float | None:
        """From 0 to 1; None where there is nothing to count."""
        return self.hit / self.all if self.all else None


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """What `breakdown` found over all images."""

    consistent: Share  # captions that hold as a whole, for one choice of objects
    parsed: Share  # captions that the grammar can have written
    size_recall: dict[str, Share]  # of the objects of each size, those that some mention fits
    relation_precision: dict[str, Share]  # of the times a relation is stated, those that hold
    relation_recall: dict[str, Share]  # of the times it holds, or is in references, those stated

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def breakdown(
    captions: Mapping[str, str],
    scenes: Mapping[str, Scene],
    references: Mapping[str, Sequence[str]] | None = None,
) -> Breakdown:
    """Captions (image id -> caption) against the scenes, by size and by relation.

    A stated relation holds if it does between objects that fit both descriptions in full. Recall
    of relations is of all that hold in the scene, or with `references` of those among them that
    some reference states. A caption that does not parse mentions nothing and holds of nothing.
    Raises PipelineError when a caption has no scene or no references, ParseError when a
    reference is outside the grammar.
    """
    consistent = parsed = 0
    seen, there, stated, right, wanted, found = (Counter[str]() for _ in range(6))
    for image, caption in captions.items():
        if image not in scenes or (references is not None and image not in references):
            raise PipelineError(f"breakdown: image {image!r} has no scene or no references")
        scene = scenes[image]
        meaning = _read(caption)
        if meaning is not None:
            parsed += 1
            consistent += holds(meaning, scene)
        meaning = meaning or Meaning()  # what does not parse mentions nothing
        for thing in scene.things:
            there[size_bin(thing)] += 1
            seen[size_bin(thing)] += any(fits(one, thing) for one in meaning.mentions)
        goal = set(scene.facts)
        if references is not None:
            goal = {fact for text in references[image] for fact in _all_meant(parse(text), scene)}
        meant = list(_meant(meaning, scene))
        stated.update(name for name, _ in meant)
        right.update(name for name, facts in meant if facts)
        wanted.update(name for name, _ in goal)
        found.update(name for name, _ in goal & {fact for _, facts in meant for fact in facts})
    return Breakdown(
        consistent=Share(hit=consistent, all=len(captions)),
        parsed=Share(hit=parsed, all=len(captions)),
        size_recall=_shares(BINS, seen, there),
        relation_precision=_shares(tuple(RELATIONS), right, stated),
        relation_recall=_shares(tuple(RELATIONS), found, wanted),
    )


def holds(meaning: Meaning, scene: Scene) -> bool:
    """Whether different objects can be chosen for the mentions so that all that is said is true.

    A counted mention takes as many objects as it counts, which alone fit it.
    """
    choices = [
        [place for place, thing in enumerate(scene.things) if fits(mention, thing)]
        for mention in meaning.mentions
    ]
    return _assign(meaning, set(scene.facts), choices, [])


def fits(mention: Mention, thing: Thing) -> bool:
    """Whether an object is all that is said of it."""
    return mention.shape in (thing.shape, ANY_SHAPE) and mention.attributes <= thing.attributes


def size_bin(thing: Thing) -> str:
    """tiny (3 to 8 pixels in a picture of 112), else small, medium or large."""
    return BINS[0] if thing.size <= TINY[1] else thing.word


def _read(caption: str) -> Meaning | None:
    try:
        return parse(caption)
    except ParseError:
        return None


def _assign(
    meaning: Meaning, facts: set[Fact], choices: list[list[int]], chosen: list[tuple[int, ...]]
) -> bool:
    """Depth first: `chosen` holds the objects of the first mentions."""
    at = len(chosen)
    if at == len(choices):
        return True
    taken = {place for places in chosen for place in places}
    if meaning.mentions[at].count > 1:
        exact = len(choices[at]) == meaning.mentions[at].count
        options = [tuple(choices[at])] if exact and not taken & set(choices[at]) else []
    else:
        options = [(place,) for place in choices[at] if place not in taken]
    due = [(name, places) for name, places in meaning.relations if max(places) == at]
    for option in options:
        tried = [*chosen, option]
        told = ((name, tuple(tried[place][0] for place in places)) for name, places in due)
        if all(any((name, order) in facts for order in _orders(name, who)) for name, who in told):
            if _assign(meaning, facts, choices, tried):
                return True
    return False


def _meant(meaning: Meaning, scene: Scene) -> Iterator[tuple[str, set[Fact]]]:
    """Each stated relation with the relations of the scene that it can mean."""
    for name, places in meaning.relations:
        wanted = [meaning.mentions[place] for place in places]
        facts = {
            (fact, who)
            for fact, who in scene.facts
            if fact == name
            and any(
                all(fits(m, scene.things[place]) for m, place in zip(wanted, order, strict=True))
                for order in _orders(name, who)
            )
        }
        yield name, facts


def _all_meant(meaning: Meaning, scene: Scene) -> set[Fact]:
    return {fact for _, facts in _meant(meaning, scene) for fact in facts}


def _orders(name: str, who: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The orders in which the objects of a relation can be said."""
    if name in SYMMETRIC:
        return who, who[::-1]
    return (who, (who[0], who[2], who[1])) if len(who) == 3 else (who,)


def _shares(names: tuple[str, ...], hit: Counter[str], there: Counter[str]) -> dict[str, Share]:
    return {name: Share(hit=hit[name], all=there[name]) for name in names}
