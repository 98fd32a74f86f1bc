"""What a person might say of a scene: captions of one to three clauses, each true.

    caption   clause {joiner clause}
    clause    [opener] subject [verb] [relation object [and object]]  |  subject verb attribute
    subject   a small red circle | two red circles | it | another | another circle |
              another one | the other one | the circle
    object    a small red circle | it | the circle

Large objects near the middle are mentioned more often, and each caption looks at the scene anew,
so that no single string is right. `parsing` reads the same grammar back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.scenes.relations import Fact
from pipeline.scenes.scene import Scene, Thing, generator
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

# how readily a relation is stated where it holds; what always holds somewhere is seldom worth it
_WORTH = {
    **dict.fromkeys(SIGNED, 1.0),
    **{"near": 0.5, "far from": 0.3, "beside": 1.0, "stacked with": 1.0, "inside": 6.0},
    **{"bigger than": 0.3, "aligned with": 0.5, "between": 0.5},
}
_TURNED_CHANCE = 0.3  # of `b around a` for `a inside b`, and its like
_PLAIN_CHANCE = 0.15  # of saying that an object is plain, when texture is spoken of
_COUNT_CHANCE = 0.5  # of counting objects that look alike, where only their presence is stated
_ENDING_CHANCE = 0.3  # of `with stripes` for `striped`
_TRIES = 20


@dataclass(frozen=True)
class Caption:
    """Words of a caption, and which object each noun or pronoun means: (word, object) places."""

    words: tuple[str, ...]
    mentions: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        """The caption as a sentence."""
        joined = " ".join(self.words)
        return f"{joined[0].upper()}{joined[1:]}."


@dataclass
class _Said:
    """The caption so far."""

    words: list[str] = field(default_factory=list)
    mentions: list[tuple[int, int]] = field(default_factory=list)
    known: list[tuple[int, frozenset[str]]] = field(default_factory=list)  # latest last
    subject: tuple[int, frozenset[str]] | None = None  # of the latest clause, with what was said
    object: int | None = None  # of the latest clause
    groups: set[frozenset[int]] = field(default_factory=set)  # objects already related
    counted: bool = False  # the latest subject was several objects

    def copy(self) -> _Said:
        return _Said(
            *(list(self.words), list(self.mentions), list(self.known), self.subject),
            *(self.object, set(self.groups), self.counted),
        )


def captions(scene: Scene, seed: int, index: int, world: World, *, training: bool) -> list[Caption]:
    """The captions of scene `index`; in `training` ones no held-out shape is mentioned."""
    rng = generator(seed, index, "captions")
    hidden = world.held_out if training else ()
    return [_Speaker(scene, world, rng, hidden).caption() for _ in range(world.captions)]


class _Speaker:
    """One look at a scene and what is said of it."""

    def __init__(
        self, scene: Scene, world: World, rng: np.random.Generator, hidden: Sequence[str]
    ) -> None:
        self.things, self.world, self.rng = scene.things, world, rng
        self.visible = [i for i, thing in enumerate(scene.things) if thing.shape not in hidden]
        self.facts = [fact for fact in scene.facts if set(fact[1]) <= set(self.visible)]
        self.facts += [(name, (b, a)) for name, (a, b) in self._pairs() if name in SYMMETRIC]
        noise = rng.normal(scale=world.wander, size=len(scene.things))
        self.weights = [
            _salience(thing) ** world.focus * float(np.exp(extra))
            for thing, extra in zip(scene.things, noise, strict=True)
        ]

    def _pairs(self) -> list[tuple[str, tuple[int, int]]]:
        return [(name, (who[0], who[1])) for name, who in self.facts if len(who) == 2]

    def caption(self) -> Caption:
        """A caption of at most `world.longest` words."""
        if not self.visible:
            opener = OPENERS_OF_ONE[self.rng.integers(len(OPENERS_OF_ONE))]
            return Caption((*opener.split(), "a", ANY_SHAPE), ())
        share = np.array(self.world.clauses) / sum(self.world.clauses)
        clauses = 1 + int(self.rng.choice(3, p=share))
        said = self._first(_Said())
        while len(said.words) > self.world.longest:
            said = self._first(_Said())
        for _ in range(clauses - 1):
            longer = self._later(said.copy())
            if longer is None or len(longer.words) > self.world.longest:
                break
            said = longer
        return Caption(tuple(said.words), tuple(said.mentions))

    # clauses

    def _first(self, said: _Said) -> _Said:
        fact = self._fact(self.facts) if self.rng.random() < self.world.relations else None
        if fact is None:
            return self._presence(said, opener=self.rng.random() < 0.8)
        kind = self.rng.integers(3)  # `a is near b`, `a near b`, `there is a near b`
        if kind == 2:
            self._say(said, self._choice(OPENERS_OF_ONE))
        self._start(said, fact[1][0])
        self._relation(said, fact, verb=kind == 0)
        return said

    def _later(self, said: _Said) -> _Said | None:
        """One more clause, or None where nothing is left to say."""
        if self.rng.random() < self.world.pronouns and not said.counted:
            for kind in self.rng.permutation(("it", "it", "attribute", "another", "the"))[:3]:
                longer = self._back(said.copy(), kind)
                if longer is not None:
                    return longer
        mentioned = {i for i, _ in said.known}
        facts = [
            fact
            for fact in self.facts
            if fact[1][0] not in mentioned
            and frozenset(fact[1]) not in said.groups
            and all(i not in mentioned or self._pointer(said, i) for i in fact[1][1:])
        ]
        fact = self._fact(facts) if self.rng.random() < self.world.relations else None
        if fact is not None:
            self._say(said, self._choice(JOINERS))
            self._start(said, fact[1][0])
            self._relation(said, fact, verb=True)
            return said
        if mentioned >= set(self.visible):
            return None
        self._say(said, JOINERS[0])
        return self._presence(said, opener=False)

    def _back(self, said: _Said, kind: str) -> _Said | None:
        """A clause whose subject points back at what was said, or None."""
        if said.subject is None:
            return None
        subject, described = said.subject
        if kind == "attribute":
            return self._attribute(said, subject, described)
        others: list[int] = []
        if kind == "another":
            others = [i for i in self.visible if i != subject and _fits(self.things[i], described)]
            known = {i for i, _ in said.known}
            others = [i for i in others if i not in known]
        elif kind == "the" and said.object is not None and self._latest(said, said.object):
            others = [said.object]
        elif kind == "it":
            others = [subject]
        facts = [
            fact
            for fact in self.facts
            if fact[1][0] in others
            and frozenset(fact[1]) not in said.groups
            and all(self._pointer(said, i) or not self._mentioned(said, i) for i in fact[1][1:])
            and not (kind == "it" and subject in fact[1][1:])
        ]
        fact = self._fact(facts)
        if fact is None:
            return None
        self._say(said, self._choice(JOINERS))
        if kind == "another":
            self._another(said, fact[1][0], described)
        else:
            self._point(said, "it" if kind == "it" else "the", fact[1][0])
        self._relation(said, fact, verb=True)
        return said

    def _attribute(self, said: _Said, subject: int, described: frozenset[str]) -> _Said | None:
        thing = self.things[subject]
        left = [name for name in (thing.colour, thing.texture, thing.word) if name not in described]
        left = [name for name in left if name not in ("plain", "medium")]
        if not left:
            return None
        name = left[self.rng.integers(len(left))]
        self._say(said, JOINERS[0])
        self._point(said, "it", subject)
        self._say(said, "is " + self._word(name))
        said.subject = (subject, described | {name})
        return said

    def _presence(self, said: _Said, *, opener: bool) -> _Said:
        """That something is there, or two or three of it."""
        mentioned = {i for i, _ in said.known}
        who = self._pick([i for i in self.visible if i not in mentioned])
        thing = self.things[who]
        described = self._description(thing)
        alike = [i for i in self.visible if _fits(self.things[i], described)]
        several = len(alike) in COUNTS and not set(alike) & mentioned
        if several and self.rng.random() < _COUNT_CHANCE:
            if opener:
                self._say(said, self._choice(OPENERS_OF_MANY))
            self._say(said, COUNTS[len(alike)])
            self._noun(said, who, described, many=True)
            said.known += [(i, described) for i in alike]
            said.counted = True
        else:
            if opener:
                self._say(said, self._choice(OPENERS_OF_ONE))
            self._new(said, who, described)
            said.counted = False
        said.subject, said.object = (who, described), None
        return said

    def _relation(self, said: _Said, fact: Fact, *, verb: bool) -> None:
        """`is left of b`, `is between b and c`, to the subject that was just said."""
        name, who = fact
        if verb:
            stands = name in SIGNED or name in ("near", "beside", "inside", "between")
            self._say(said, self._choice(VERBS) if stands else VERBS[0])
        self._say(said, self._choice(RELATIONS[name]))
        self._object(said, who[1])
        if len(who) == 3:
            self._say(said, "and")
            self._object(said, who[2])
        self._end(said, fact)

    def _start(self, said: _Said, who: int) -> None:
        described = self._description(self.things[who])
        self._new(said, who, described)
        said.now = (who, described)

    def _end(self, said: _Said, fact: Fact) -> None:
        said.groups.add(frozenset(fact[1]))
