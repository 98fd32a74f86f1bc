"""The words by which a caption names a class of objects: its name and the plural of that.

A file of forms goes over the rule: lines `class<TAB>word,word`, where a word may be a phrase.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.open_images import lines_of

IRREGULAR = {
    "man": "men",
    "woman": "women",
    "person": "people",
    "child": "children",
    "foot": "feet",
    "tooth": "teeth",
    "goose": "geese",
    "mouse": "mice",
    "ox": "oxen",
    "knife": "knives",
    "loaf": "loaves",
    "leaf": "leaves",
    "shelf": "shelves",
    "scarf": "scarves",
    "wolf": "wolves",
    "calf": "calves",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "mango": "mangoes",
    "sheep": "sheep",
    "deer": "deer",
    "fish": "fish",
    "shrimp": "shrimp",
    "squid": "squid",
    "aircraft": "aircraft",
    "bus": "buses",
    "cactus": "cacti",
}


def read_forms(path: Path) -> dict[str, tuple[str, ...]]:
    """Class -> words or phrases, all in lower case. Raises PipelineError with file and line."""
    forms: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        name, tab, listed = line.lower().partition("\t")
        words = tuple(" ".join(word.split()) for word in listed.split(",") if word.strip())
        if not tab or not name.strip() or not words:
            raise PipelineError(f"{path}: line {number}: {line!r}, wanted class<TAB>word,word")
        if name.strip() in forms:
            raise PipelineError(f"{path}: line {number}: {name.strip()!r} stands there twice")
        forms[name.strip()] = words
    return forms


def forms_of(name: str, listed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The words or phrases of a class: those listed, else its name in both numbers.

    What stands in brackets is no part of a name: `wheel (of a car)`.
    """
    if name in listed:
        return listed[name]
    words = re.sub(r"\(.*?\)", " ", name).split()
    if not words:
        return ()
    *front, last = words
    return tuple(dict.fromkeys(" ".join([*front, form]) for form in (last, plural(last))))


def plural(noun: str) -> str:
    """The plural by the rules of spelling, or that of a list of irregular ones."""
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if noun in IRREGULAR.values() or re.search(r"[^s]s$", noun):
        return noun  # a plural already: scissors, trousers
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return f"{noun}es"
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}s"
