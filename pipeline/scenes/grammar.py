"""What captions mean: a parser of the grammar that writes them, into facts that can be counted.

    caption  := clause {("and" | "while") clause}
    clause   := opener noun-phrase [phrase noun-phrase] | noun-phrase verb phrase noun-phrase
    noun-phrase := ("a" | "an" | "another") {attribute} noun [ending]
                 | "the" noun | "the other one" | "it" | count {attribute} plural [ending]

The phrase of `between` takes two noun phrases joined by "and". "it" is the subject of the clause
before; "the" noun is the last mention of that shape; "the other one" is a further object that
fits what was said of the subject of the clause before; "another" asks for an earlier mention of
its shape. A word that points back to nothing is an error, as a wrong word is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipeline.errors import PipelineError
from pipeline.scenes.words import (
    ANY_SHAPE,
    ATTRIBUTES,
    COLOURS,
    COUNTS,
    JOINERS,
    OPENERS_OF_MANY,
    OPENERS_OF_ONE,
    PHRASES,
    PLURALS,
    SINGULARS,
    SIZES,
    SYMMETRIC,
    TEXTURE_ENDINGS,
    TEXTURES,
    VERBS,
)

Tuple = tuple[str, ...]  # (shape,), (shape, attribute) or (shape, relation, shape[, shape])

_ENDINGS = {words: name for name, words in TEXTURE_ENDINGS.items()}
_NUMBERS = {word: number for number, word in COUNTS.items()}
_NOUNS = {**SINGULARS, ANY_SHAPE: ANY_SHAPE}
_LONGEST_PHRASE = max(map(len, PHRASES))
_KINDS = (COLOURS, TEXTURES, SIZES)


class ParseError(PipelineError):
    """A caption that the grammar cannot have written; the message says where it leaves it."""


@dataclass(kw_only=True)
class Mention:
    """Objects that a caption speaks of: one, or `count` alike."""

    shape: str
    attributes: frozenset[str] = frozenset()
    count: int = 1


@dataclass(kw_only=True)
class Meaning:
    """What a caption says: its mentions, and relations between them by their indices."""

    mentions: list[Mention] = field(default_factory=list)
    relations: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def tuples(self) -> set[Tuple]:
        """Objects (shape,), attributes (shape, attribute), relations (shape, relation, shape).

        A count is an attribute: ("star", "two"). The two sides of a symmetric relation, and the
        two around a `between`, stand in alphabetical order.
        """
        said: set[Tuple] = set()
        for mention in self.mentions:
            said.add((mention.shape,))
            said.update((mention.shape, attribute) for attribute in mention.attributes)
            if mention.count > 1:
                said.add((mention.shape, COUNTS[mention.count]))
        for name, places in self.relations:
            said.add(relation_tuple(name, [self.mentions[place].shape for place in places]))
        return said


def relation_tuple(name: str, shapes: list[str]) -> Tuple:
    """(shape, relation, shape), and for `between` (shape, relation, shape, shape)."""
    if name in SYMMETRIC:
        shapes = sorted(shapes)
    return (shapes[0], name, *sorted(shapes[1:]))


def words_of(caption: str) -> list[str]:
    """The words in lower case, without punctuation."""
    return re.findall(r"[a-z]+", caption.lower())


def parse(caption: str) -> Meaning:
    """What a caption says. Raises ParseError."""
    return _Parser(words_of(caption)).caption()


def parse_caption(caption: str) -> set[Tuple]:
    """`parse` as a set of tuples, see `Meaning.tuples`. Raises ParseError."""
    return parse(caption).tuples()


class _Parser:
    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.at = 0
        self.meaning = Meaning()
        self.subject: int | None = None  # mention that `it` stands for

    def caption(self) -> Meaning:
        self._clause()
        while self.at < len(self.words):
            if not self._take_any(JOINERS):
                raise self._error("a joiner or the end")
            self._clause()
        return self.meaning

    def _clause(self) -> None:
        opened = self._take_opener()
        first = self._noun_phrase(pronoun=not opened)
        if not opened and not self._take_any(VERBS):
            raise self._error("a verb")
        phrase = self._take_phrase()
        if phrase is not None:
            self._relation(first, *phrase)
        elif not opened:
            raise self._error("a relation")
        self.subject = first if self.meaning.mentions[first].count == 1 else None

    def _relation(self, first: int, name: str, turned: bool) -> None:
        places = [first, self._noun_phrase(pronoun=False)]
        if name == "between":
            if not self._take("and"):
                raise self._error("'and' after between")
            places.append(self._noun_phrase(pronoun=False))
        if len(set(places)) < len(places):
            raise self._error("different objects")
        if any(self.meaning.mentions[place].count > 1 for place in places):
            raise self._error("one object on either side")
        self.meaning.relations.append((name, tuple(places[::-1] if turned else places)))

    def _noun_phrase(self, *, pronoun: bool) -> int:
        """The index of the mention that the next words make or point back to."""
        if pronoun and self._take("it"):
            return self._antecedent("it")
        if pronoun and self._take("the", "other", "one"):
            earlier = self.meaning.mentions[self._antecedent("the other one")]
            return self._new(Mention(shape=earlier.shape, attributes=earlier.attributes))
        if self._take("the"):
            return self._earlier(self._noun(_NOUNS))
        if self._take("another"):
            mention = self._described(1)
            self._earlier(mention.shape)
            return self._new(mention)
        for word, number in _NUMBERS.items():
            if self._take(word):
                return self._new(self._described(number))
        if not self._take_any(("a", "an")):
            raise self._error("a noun phrase")
        return self._new(self._described(1))

    def _described(self, count: int) -> Mention:
        found: list[str] = []
        while self.at < len(self.words) and self.words[self.at] in ATTRIBUTES:
            found.append(ATTRIBUTES[self.words[self.at]])
            self.at += 1
        shape = self._noun(_NOUNS if count == 1 else PLURALS)
        found += [name for words, name in _ENDINGS.items() if self._take(*words)]
        for table in _KINDS:
            if sum(name in table for name in found) > 1:
                raise self._error("one colour, one texture and one size at most")
        return Mention(shape=shape, attributes=frozenset(found), count=count)

    def _noun(self, nouns: dict[str, str]) -> str:
        if self.at >= len(self.words) or self.words[self.at] not in nouns:
            raise self._error("a noun")
        self.at += 1
        return nouns[self.words[self.at - 1]]

    def _new(self, mention: Mention) -> int:
        self.meaning.mentions.append(mention)
        return len(self.meaning.mentions) - 1

    def _antecedent(self, what: str) -> int:
        if self.subject is None:
            raise ParseError(f"{what!r} points back to nothing in {' '.join(self.words)!r}")
        return self.subject

    def _earlier(self, shape: str) -> int:
        for place in reversed(range(len(self.meaning.mentions))):
            if self.meaning.mentions[place].shape == shape:
                return place
        raise ParseError(f"no {shape} was mentioned before in {' '.join(self.words)!r}")

    def _take(self, *words: str) -> bool:
        if tuple(self.words[self.at : self.at + len(words)]) != words:
            return False
        self.at += len(words)
        return True

    def _take_any(self, words: tuple[str, ...]) -> bool:
        return any(self._take(word) for word in words)

    def _take_opener(self) -> bool:
        return any(self._take(*opener.split()) for opener in OPENERS_OF_ONE + OPENERS_OF_MANY)

    def _take_phrase(self) -> tuple[str, bool] | None:
        for length in range(_LONGEST_PHRASE, 0, -1):
            phrase = tuple(self.words[self.at : self.at + length])
            if len(phrase) == length and phrase in PHRASES:
                self.at += length
                return PHRASES[phrase]
        return None

    def _error(self, wanted: str) -> ParseError:
        found = repr(self.words[self.at]) if self.at < len(self.words) else "the end"
        return ParseError(
            f"word {self.at + 1} of {' '.join(self.words)!r} is {found}, wanted {wanted}"
        )
