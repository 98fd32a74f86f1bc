"""From text to PTB tokens: the longest rule at each place, and the spelling of what it found."""

from __future__ import annotations

import re
from array import array

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
_MONEY = {"\u00a2": "cents", "\u00a3": "#", "\u00a4": "$", "\u0080": "$", "\u20a0": "$"} | {
    "\u20ac": "$"
}
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
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_rules_by_character: dict[str, tuple[Rule, ...]] = {}


def code_units(text: str) -> str:
    """Characters beyond U+FFFF as two surrogates, as the rules count them; lone ones replaced."""
    text = _LONE_SURROGATE.sub("\ufffd", text)
    if text and max(text) > "\uffff":
        return "".join(map(chr, array("H", text.encode("utf-16"))))[1:]  # without the order mark
    return text


def tokens(text: str, start: int, end: int) -> tuple[list[str], int]:
    """The lower-cased tokens of `text[start:end]`, and where the last one ends.

    The last token may reach beyond `end`, and rules look beyond it. Punctuation that captions
    never keep is among the tokens. `text` must have come through `code_units`.
    """
    found: list[str] = []
    place = start
    while place < end:
        kind, match = _longest(text, place)
        if kind is not Kind.NOTHING:
            found.append(_spelled(kind, match[1]))
        place = match.end(1)
    return found, place


def _longest(text: str, place: int) -> tuple[Kind, re.Match[str]]:
    character = text[place]
    rules = _rules_by_character.get(character)
    if rules is None:
        rules = tuple(rule for rule in RULES if rule.starts.match(character))
        _rules_by_character[character] = rules
    best, kind, reach = None, Kind.NOTHING, -1
    for rule in rules:
        match = rule.pattern.match(text, place)
        if match is not None and match.end() > reach:
            best, kind, reach = match, rule.kind, match.end()
    if best is None:
        raise AssertionError(f"no rule matches {character!r}")  # the last rule matches anything
    return kind, best


def _spelled(kind: Kind, text: str) -> str:
    if kind is Kind.WORD:
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
