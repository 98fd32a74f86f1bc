"""From text to PTB tokens: the longest rule at each place, and the spelling of what it found."""

from __future__ import annotations

import re

from evaluate.ptb_characters import code_units, shape
from evaluate.ptb_rules import RULES, Kind, Rule

_BRACKETS = {
    "(": "-lrb-",
    ")": "-rrb-",
    "[": "-lsb-",
    "]": "-rsb-",
    "{": "-lcb-",
    "}": "-rcb-",
}
_FRACTIONS = {"\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3"}
_MONEY = {"\u00a2": "cents", "\u00a3": "#", **dict.fromkeys("\u00a4\u0080\u20a0\u20ac", "$")}
_PLAIN_QUOTES = {
    **dict.fromkeys("\u0091\u2018\u201b\u2039", "`"),
    **dict.fromkeys("\u0092\u2019\u203a", "'"),
    **dict.fromkeys("\u0093\u201c\u00ab", "``"),
    **dict.fromkeys('\u0094\u201d\u00bb"', "''"),
}
_QUOTES = str.maketrans(_PLAIN_QUOTES)
_ROUND = str.maketrans({"(": "-lrb-", ")": "-rrb-"})
_SOFT_HYPHEN = "\u00ad"
_PUNCTUATION = "."  # stands for any token that captions never keep
_ENTITIES = re.compile("(?i:&(amp|lt|gt);)")
_DECODED = {"amp": "&", "lt": "<", "gt": ">"}

_rules_by_shape: dict[str, tuple[Rule, ...]] = {}


class Text:
    """A text with its shapes, ready for `tokens`."""

    def __init__(self, raw: str) -> None:
        self.raw = code_units(raw)
        self.shapes = shape(self.raw)

    def tokens(self, start: int, end: int) -> tuple[list[str], int]:
        """The lower-cased tokens from `start` to `end`, and where the last one ends.

        The last one may reach beyond `end`, and rules look beyond it. Punctuation that captions
        never keep is among the tokens.
        """
        found: list[str] = []
        place = start
        while place < end:
            kind, stop = _longest(self.shapes, place)
            if kind is not Kind.NOTHING:
                found.append(_spelled(kind, self.raw[place:stop]))
            place = stop - 1 if kind is Kind.SHARED_STOP else stop
        return found, place


def _longest(shapes: str, place: int) -> tuple[Kind, int]:
    """The kind of the winning rule, and where its token ends."""
    first = shapes[place]
    rules = _rules_by_shape.get(first)
    if rules is None:
        rules = tuple(rule for rule in RULES if rule.starts.match(first))
        _rules_by_shape[first] = rules
    kind, stop, reach = Kind.NOTHING, place + 1, place
    for rule in rules:
        match = rule.pattern.match(shapes, place)
        if match is not None and match.end() > reach:
            kind, stop, reach = rule.kind, match.end(1), match.end()
    return kind, stop


def _spelled(kind: Kind, text: str) -> str:
    if kind is Kind.WORD or kind is Kind.SHARED_STOP:
        text = text.replace(_SOFT_HYPHEN, "") or "-"
    elif kind is Kind.REMOVED:
        return _PUNCTUATION
    elif kind is Kind.GLUED:
        text = text.replace(" ", "\u00a0").translate(_ROUND)
    elif kind is Kind.SMILEY:
        text = text.translate(_ROUND)
    elif kind is Kind.TAG:
        text = text.replace(" ", "\u00a0")
    elif kind is Kind.SUFFIX or kind is Kind.QUOTE:
        text = text.replace("&apos;", "'").replace("&quot;", '"').translate(_QUOTES)
    elif kind is Kind.ENTITY:
        text = _ENTITIES.sub(lambda entity: _DECODED[entity[1].lower()], text)
    elif kind is Kind.BRACKET:
        text = _BRACKETS[text]
    elif kind is Kind.FRACTION:
        text = _FRACTIONS.get(text, text)
    elif kind is Kind.MONEY:
        text = _MONEY.get(text, text)
    if max(text) >= "\ud800":
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.lower()
