"""References and candidates matched by image id, checked before any metric counts a word."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from evaluate.errors import EvaluateError

Id = TypeVar("Id", bound=Hashable)

_NAMED = 5  # ids spelled out in a message; the rest are counted


class Pair(NamedTuple):
    """One image: its references and the candidate to be scored against them."""

    references: Sequence[str]
    candidate: str


def paired(references: Mapping[Id, Sequence[str]], candidates: Mapping[Id, str]) -> list[Pair]:
    """The pairs in the order of `references`.

    Raises EvaluateError when an id is on one side only, an image has no reference, or a value
    is of the wrong kind; the message names the ids.
    """
    without_candidate = [i for i in references if i not in candidates]
    without_references = [i for i in candidates if i not in references]
    if without_candidate or without_references:
        found = []
        if without_candidate:
            found.append(f"{_named(without_candidate)} have references but no candidate")
        if without_references:
            found.append(f"{_named(without_references)} have a candidate but no references")
        raise EvaluateError(
            "; ".join(found) + "; both sides must hold the same ids: score the ids in common"
            " (--subset) or complete the results"
        )
    for image, texts in references.items():
        if isinstance(texts, str) or not texts:
            raise EvaluateError(
                f"image {image!r}: references are {texts!r}, wanted a list of one or more strings"
            )
        if not isinstance(candidates[image], str):
            raise EvaluateError(
                f"image {image!r}: candidate is {candidates[image]!r}, wanted one string"
            )
    return [Pair(texts, candidates[image]) for image, texts in references.items()]


def _named(ids: Sequence[Hashable]) -> str:
    shown = ", ".join(repr(i) for i in ids[:_NAMED])
    rest = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{len(ids)} ids ({shown}{rest})"
