"""Characters as the tokenizer's rules see them: one stand-in for all that are treated alike.

The sets are facts about the official program (of an older Unicode than Python's), checked by
trying every character up to U+FFFF on it. Characters in none of them make no token; those beyond
U+FFFF are two code units each, of that sort.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from importlib import resources

# Insides of regular expressions' `[...]`, over shapes
LETTER = r"A-Za-z\u00E9\u0130\u0131\u017F\u212A"
MARK = r"\u02C2"
DIGIT = r"0-9\u0660"
SYMBOL = r"\u00A7\u2044\u207A\u207B\u208A\u208B\u3001"

_STAND_INS = {"letters": "\u00e9", "marks": "\u02c2", "digits": "\u0660", "symbols": "\u00a7"}
_NO_TOKEN = "\x01"
# Characters that some rule names stand for themselves, all of ASCII among them.
_NAMED = frozenset(
    map(
        chr,
        [
            *range(0x80),
            *(0x80, 0x85, *range(0x91, 0x98), 0xA0, *range(0xA2, 0xA6), 0xAB, 0xAD, 0xB2, 0xB3),
            *(0xB9, 0xBB, *range(0xBC, 0xBF), 0x130, 0x131, 0x17F, 0x58A, 0x60B, 0x66B, 0x66C),
            *(0xE3F, *range(0x2000, 0x200B), *range(0x2010, 0x2012), *range(0x2013, 0x2016)),
            *(*range(0x2018, 0x2020), 0x2026, 0x2039, 0x203A, 0x2044, 0x2070),
            *(*range(0x2074, 0x207C), *range(0x2080, 0x208C), 0x20A0, 0x20A4, 0x20AC, 0x212A),
            *(*range(0x2153, 0x215F), 0x3000, 0x3001, 0xFFE0, 0xFFE1, 0xFFE5, 0xFFE6),
        ],
    )
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class _Shapes(dict[int, str]):
    """Code point -> stand-in, worked out when first met."""

    def __init__(self) -> None:
        path = resources.files("evaluate").joinpath("ptb_characters.json")
        stored = json.loads(path.read_text(encoding="utf-8"))
        ranges = []
        for name, lines in stored.items():
            for span in " ".join(lines).split():
                first, _, last = span.partition("-")
                ranges.append((int(first, 16), int(last or first, 16), _STAND_INS[name]))
        self._ranges = sorted(ranges)

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in _NAMED:
            shape = character
        else:
            at = bisect_right(self._ranges, (code, 0x10FFFF, "")) - 1
            found = at >= 0 and code <= self._ranges[at][1]
            shape = self._ranges[at][2] if found else _NO_TOKEN
        self[code] = shape
        return shape


_shapes = _Shapes()


def code_units(text: str) -> str:
    """Characters beyond U+FFFF as two surrogates, as the rules count them; lone ones replaced."""
    if text.isascii():
        return text
    text = _LONE_SURROGATE.sub("\ufffd", text)
    if max(text) > "\uffff":
        return "".join(map(chr, array("H", text.encode("utf-16"))))[1:]  # without the order mark
    return text


def shape(text: str) -> str:
    """The text with a stand-in for each character; of the same length."""
    return text if text.isascii() else text.translate(_shapes)
