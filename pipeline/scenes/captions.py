"""Captions of a scene, written by the grammar that `grammar` reads back.

What is mentioned goes by size and nearness to the middle, in part at random and anew for each
caption, so that no single string is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pipeline.scenes.scene import Scene, Thing
from pipeline.scenes.words import (
    ANY_SHAPE,
    COLOURS,
    COUNTS,
    JOINERS,
    NOUNS,
    OPENERS_OF_MANY,
    OPENERS_OF_ONE,
    RELATIONS,
    SIGNED,
    SIZES,
    SYMMETRIC,
    TEXTURE_ENDINGS,
    TEXTURES,
    TURNED,
    VERBS,
    article,
)
from pipeline.scenes.world import World

T = TypeVar("T")

_UNREMARKABLE = 0.25  # how much more seldom `plain` and `medium` are said
_OPENED = 0.4  # chance that a first clause with a relation begins with an opener
_COUNTED = 0.7  # chance that two or three of a kind are counted
_BREVITY = (1.0, 0.85, 0.25)  # how much less is said of each object with 0, 1, 2 later clauses
_ENDED = 0.3  # chance that a texture stands after the noun
# how much rather a relation is told than another
_TELLING = {"inside": 6.0, "between": 2.0, "far from": 0.5, "bigger than": 0.5}
_ATTEMPTS = 4  # to write a caption that the scene does not have yet
_CLAUSES = 12  # to write a clause that fits


@dataclass(frozen=True, kw_only=True)
class _Fact:
    """A relation as told of its subject."""

    name: str
    turned: bool  # told by the words for the turned relation
    others: tuple[int, ...]


@dataclass(kw_only=True)
class _Spoken:
    """Objects that were mentioned by one noun phrase, and how."""

    things: tuple[int, ...]
    shape: str
    attributes: frozenset[str]


def write_captions(
    scene: Scene, rng: np.random.Generator, world: World, unspoken: Sequence[str] = ()
) -> list[str]:
    """`world.captions` captions; shapes in `unspoken` are never named."""
    written: list[str] = []
    for _ in range(world.captions):
        for _ in range(_ATTEMPTS):
            caption = _Writer(scene, rng, world, unspoken).caption()
            if caption not in written:
                break
        written.append(caption)
    return written


def salience(thing: Thing, focus: float) -> float:
    """How readily an object is mentioned: (size x nearness to the middle)^focus."""
    away = math.hypot(thing.x - 0.5, thing.y - 0.5)
    return float((thing.size * (1 - away)) ** focus)


class _Writer:
    """Writes one caption, clause by clause."""

    def __init__(
        self, scene: Scene, rng: np.random.Generator, world: World, unspoken: Sequence[str]
    ) -> None:
        self.scene, self.rng, self.world = scene, rng, world
        self.sayable = [
            place for place, thing in enumerate(scene.things) if thing.shape not in unspoken
        ]
        luck = rng.normal(scale=world.wander, size=len(scene.things))  # (objects,)
        self.weights = [
            salience(thing, world.focus) * math.exp(extra)
            for thing, extra in zip(scene.things, luck.tolist(), strict=True)
        ]
        self.spoken: list[_Spoken] = []
        self.related: set[frozenset[int]] = set()  # sets of objects with a relation told
        self.subject: _Spoken | None = None  # of the clause before
        self.brevity = 1.0  # scales the chances of attributes

    def caption(self) -> str:
        if not self.sayable:
            words = self._unnamed()
        else:
            words = self._clauses()
        return " ".join(words).capitalize() + "."

    def _clauses(self) -> list[str]:
        chances = np.array(self.world.clauses) / sum(self.world.clauses)  # (3,)
        later = int(self.rng.choice(3, p=chances))
        self.brevity = _BREVITY[later]
        words = self._that_fits(self._clause, self.world.longest)
        if not words:
            place = self._pick(self.sayable)
            words = self._existence(place, OPENERS_OF_ONE, OPENERS_OF_MANY)
        for _ in range(later):
            more = self._that_fits(self._later_clause, self.world.longest - len(words))
            if not more:
                break
            words += more
        return words

    def _that_fits(self, clause: Callable[[], list[str]], room: int) -> list[str]:
        """A clause of at most `room` words; empty when none is found."""
        for _ in range(_CLAUSES):
            before = len(self.spoken), self.related.copy(), self.subject
            words = clause()
            if len(words) <= room:
                return words
            del self.spoken[before[0] :]
            self.related, self.subject = before[1], before[2]
        return []

    def _clause(self) -> list[str]:
        """The first clause."""
        place = self._pick(self.sayable)
        fact = self._fact(place)
        if fact is None:
            return self._existence(place, OPENERS_OF_ONE, OPENERS_OF_MANY)
        if self.rng.random() < _OPENED:
            words = self._choose(OPENERS_OF_ONE).split() + self._new(place)
            self.subject = self.spoken[-1]
            return words + self._told(place, fact)
        return self._stated(self._new(place), place, fact)

    def _later_clause(self) -> list[str]:
        """A further clause with its joiner; empty when there is nothing more to say."""
        if self.rng.random() < self.world.pronouns:
            ways = [self._it, self._other_one, self._another]
            for way in self.rng.permutation(len(ways)).tolist():
                words = ways[way]()
                if words:
                    return [self._choose(JOINERS), *words]
        place = self._unspoken()
        if place is None:
            return []
        fact = self._fact(place)
        if fact is None:
            later = [opener for opener in OPENERS_OF_ONE if opener[0] != "a"]
            many = [opener for opener in OPENERS_OF_MANY if opener[0] != "a"]
            return ["and", *self._existence(place, later, many)]
        return [self._choose(JOINERS), *self._stated(self._new(place), place, fact)]

    def _it(self) -> list[str]:
        subject = self.subject
        if subject is None or len(subject.things) > 1:
            return []
        fact = self._fact(subject.things[0], wanted=True)
        return [] if fact is None else self._stated(["it"], subject.things[0], fact)

    def _other_one(self) -> list[str]:
        """A clause about the one other object that fits what was said of the subject."""
        subject = self.subject
        if subject is None or len(subject.things) > 1:
            return []
        fitting = self._fitting(subject.shape, subject.attributes)
        others = [place for place in fitting if place not in subject.things]
        if len(others) != 1 or others[0] in self._all_spoken():
            return []
        fact = self._fact(others[0], wanted=True)
        if fact is None:
            return []
        self._speak(others, subject.attributes)
        return self._stated(["the", "other", "one"], others[0], fact)

    def _another(self) -> list[str]:
        """A clause about a further object of a shape that was mentioned."""
        shapes = {spoken.shape for spoken in self.spoken}
        place = self._unspoken(shapes)
        fact = None if place is None else self._fact(place, wanted=True)
        if place is None or fact is None:
            return []
        return self._stated(self._new(place), place, fact)

    def _stated(self, subject: list[str], place: int, fact: _Fact) -> list[str]:
        """A clause with a verb."""
        self.subject = next(s for s in reversed(self.spoken) if place in s.things)
        verb = "is" if fact.name == "bigger than" else self._choose(VERBS)
        return [*subject, verb, *self._told(place, fact)]

    def _told(self, place: int, fact: _Fact) -> list[str]:
        """The relation's phrase and the objects on its other side."""
        words = self._choose((TURNED if fact.turned else RELATIONS)[fact.name]).split()
        for number, other in enumerate(fact.others):
            words += ["and"] * (number > 0) + self._named(other)
        self.related.add(frozenset((place, *fact.others)))
        return words

    def _existence(
        self, place: int, openers: Sequence[str], openers_of_many: Sequence[str]
    ) -> list[str]:
        attributes = self._attributes(place)
        shape = self.scene.things[place].shape
        alike = self._fitting(shape, attributes)
        new = not any(spoken.shape == shape for spoken in self.spoken)
        if new and len(alike) in COUNTS and self.rng.random() < _COUNTED:
            self._speak(alike, attributes)
            self.subject = self.spoken[-1]
            described = self._described(shape, attributes, plural=True)
            return [*self._choose(openers_of_many).split(), COUNTS[len(alike)], *described]
        words = self._choose(openers).split() + self._new(place, attributes)
        self.subject = self.spoken[-1]
        return words

    def _named(self, place: int) -> list[str]:
        """A noun phrase for an object on the other side of a relation."""
        if place in self._all_spoken():
            return ["the", self._noun(self.scene.things[place].shape, plural=False)]
        return self._new(place)

    def _new(self, place: int, attributes: frozenset[str] | None = None) -> list[str]:
        """A noun phrase that mentions an object for the first time."""
        shape = self.scene.things[place].shape
        attributes = self._attributes(place) if attributes is None else attributes
        described = self._described(shape, attributes, plural=False)
        again = any(spoken.shape == shape for spoken in self.spoken)
        self._speak([place], attributes)
        return ["another" if again else article(described[0]), *described]

    def _unnamed(self) -> list[str]:
        """A caption of a scene in which no shape may be named."""
        place = self._pick(range(len(self.scene.things)))
        described = self._described(ANY_SHAPE, self._attributes(place), plural=False)
        opener = self._choose(OPENERS_OF_ONE).split()
        return [*opener, article(described[0]), *described]

    def _described(self, shape: str, attributes: frozenset[str], *, plural: bool) -> list[str]:
        """Size, texture and colour before the noun; a texture may stand after it."""
        ending = next(iter(attributes & TEXTURE_ENDINGS.keys()), None)
        if self.rng.random() >= _ENDED:
            ending = None
        words = [
            self._choose(rows)
            for table in (SIZES, TEXTURES, COLOURS)
            for name, rows in table.items()
            if name in attributes and name != ending
        ]
        return [*words, self._noun(shape, plural=plural), *TEXTURE_ENDINGS.get(ending or "", ())]

    def _noun(self, shape: str, *, plural: bool) -> str:
        return ANY_SHAPE if shape == ANY_SHAPE else self._choose(NOUNS[shape])[plural]

    def _attributes(self, place: int) -> frozenset[str]:
        """Which of an object's colour, size and texture to say."""
        thing = self.scene.things[place]
        chances = zip((thing.colour, thing.word, thing.texture), self.world.attributes, strict=True)
        said = []
        for name, chance in chances:
            scale = _UNREMARKABLE if name in ("plain", "medium") else 1.0
            if self.rng.random() < chance * scale * self.brevity:
                said.append(name)
        return frozenset(said)

    def _fact(self, place: int, *, wanted: bool = False) -> _Fact | None:
        """A relation to tell of an object; None by chance (unless `wanted`) or when none is left.

        Signed relations have their share, unless the object has none or no others.
        """
        if not wanted and self.rng.random() >= self.world.relations:
            return None
        signed = bool(self.rng.random() < self.world.signed)
        facts = list(self._facts(place))
        chosen = [fact for fact in facts if (fact.name in SIGNED) == signed]
        if not chosen and 0 < self.world.signed < 1:
            chosen = facts
        if not chosen:
            return None
        weights = np.array(
            [
                _TELLING.get(fact.name, 1.0)
                * math.prod(self.weights[other] for other in fact.others) ** (1 / len(fact.others))
                for fact in chosen
            ]
        )  # (facts,)
        return chosen[int(self.rng.choice(len(chosen), p=weights / weights.sum()))]

    def _facts(self, place: int) -> Iterator[_Fact]:
        """The relations that can be told of an object and are not told yet."""
        for name, places in self.scene.facts:
            if place not in places or not all(self._tellable(other, place) for other in places):
                continue
            if frozenset(places) in self.related:
                continue
            others = tuple(other for other in places if other != place)
            if places[0] == place or name in SYMMETRIC:
                yield _Fact(name=name, turned=False, others=others)
            elif name in TURNED:
                yield _Fact(name=name, turned=True, others=others)

    def _tellable(self, other: int, subject: int) -> bool:
        """Whether a relation may name an object: a new one, or one that `the` points to alone."""
        if other == subject:
            return True
        if other not in self.sayable:
            return False
        if other not in self._all_spoken():
            return True
        shape = self.scene.things[other].shape
        same = [spoken for spoken in self.spoken if spoken.shape == shape]
        return (
            len(same) == 1
            and same[0].things == (other,)
            and self.scene.things[subject].shape != shape
        )

    def _unspoken(self, shapes: set[str] | None = None) -> int | None:
        """An object that was not mentioned, of some shapes or of any."""
        before = self._all_spoken()
        left = [
            place
            for place in self.sayable
            if place not in before and (shapes is None or self.scene.things[place].shape in shapes)
        ]
        return self._pick(left) if left else None

    def _fitting(self, shape: str, attributes: frozenset[str]) -> list[int]:
        return [
            place
            for place, thing in enumerate(self.scene.things)
            if thing.shape == shape and attributes <= thing.attributes
        ]

    def _all_spoken(self) -> set[int]:
        return {place for spoken in self.spoken for place in spoken.things}

    def _speak(self, places: Sequence[int], attributes: frozenset[str]) -> None:
        shape = self.scene.things[places[0]].shape
        self.spoken.append(_Spoken(things=tuple(places), shape=shape, attributes=attributes))

    def _pick(self, places: Sequence[int]) -> int:
        weights = np.array([self.weights[place] for place in places])  # (places,)
        return int(places[self.rng.choice(len(places), p=weights / weights.sum())])

    def _choose(self, rows: Sequence[T]) -> T:
        """The common word, or by chance another one."""
        if len(rows) == 1 or self.rng.random() >= self.world.synonyms:
            return rows[0]
        return rows[int(self.rng.integers(1, len(rows)))]
