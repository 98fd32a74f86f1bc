"""Whether captions are true of their scenes: exact F1 of objects, attributes and relations.

A stand-in for SPICE's parts that needs no parser of English: captions are read by the grammar and
compared with the scene itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import PipelineError
from pipeline.scenes.grammar import ParseError, Tuple, parse_caption, relation_tuple
from pipeline.scenes.scene import Scene
from pipeline.scenes.words import ANY_SHAPE, COUNTS

KINDS = ("objects", "attributes", "relations")


@dataclass(frozen=True, kw_only=True)
class F1:
    """Shares from 0 to 1, and how many facts they come from."""

    precision: float
    recall: float
    f1: float
    said: int
    wanted: int


def true_tuples(scene: Scene) -> set[Tuple]:
    """All that is true of a scene, as `parse_caption` says it.

    A count holds for every number of a shape's objects up to what is there.
    """
    true: set[Tuple] = set()
    shapes = [thing.shape for thing in scene.things]
    for thing in scene.things:
        true.add((thing.shape,))
        true.update((thing.shape, attribute) for attribute in thing.attributes)
    for shape, number in Counter(shapes).items():
        true.update((shape, word) for count, word in COUNTS.items() if count <= number)
    for name, places in scene.facts:
        true.add(relation_tuple(name, [shapes[place] for place in places]))
    return true


def scene_f1(
    captions: Mapping[str, str],
    scenes: Mapping[str, Scene],
    references: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, F1]:
    """F1 of `objects`, `attributes` and `relations` over all captions together.

    Precision: the share of what captions say that is true of the scene. Recall: the share that
    they say of what is true, or with `references` of what these say, which is fairer to a
    caption of one sentence. A caption that does not parse says one false thing of each kind.
    Raises PipelineError when a caption has no scene, or a scene no references.
    """
    missing = [name for name in captions if name not in scenes]
    missing += [name for name in captions if references is not None and name not in references]
    if missing:
        raise PipelineError(
            f"scene_f1: {len(missing)} of {len(captions)} captions have no scene or no references,"
            f" the first is image {missing[0]!r}"
        )
    said, right, wanted, hit = (Counter[str]() for _ in range(4))
    for name, caption in captions.items():
        true = true_tuples(scenes[name])
        goal = true if references is None else _union(references[name])
        try:
            claims = parse_caption(caption)
        except ParseError:
            claims = set()
            said.update(KINDS)
        said.update(map(kind_of, claims))
        right.update(kind_of(claim) for claim in claims if claim in true or _vague(claim, true))
        wanted.update(map(kind_of, goal))
        hit.update(map(kind_of, claims & goal & true))
    return {kind: _f1(said[kind], right[kind], wanted[kind], hit[kind]) for kind in KINDS}


def parse_failures(captions: Mapping[str, str]) -> dict[str, str]:
    """The captions that do not parse: image id -> why."""
    failures: dict[str, str] = {}
    for name, caption in captions.items():
        try:
            parse_caption(caption)
        except ParseError as error:
            failures[name] = str(error)
    return failures


def kind_of(claim: Tuple) -> str:
    """objects, attributes or relations."""
    return KINDS[min(len(claim), 3) - 1]


def _vague(claim: Tuple, true: set[Tuple]) -> bool:
    """Whether a claim about `a shape` holds of some object."""
    places = [i for i, word in enumerate(claim) if word == ANY_SHAPE and i != 1]
    if not places:
        return False
    shapes = [name for (name,) in (row for row in true if len(row) == 1)]
    for names in itertools.product(shapes, repeat=len(places)):
        filled = list(claim)
        for place, name in zip(places, names, strict=True):
            filled[place] = name
        candidate = tuple(filled)
        if len(candidate) > 2:
            candidate = relation_tuple(filled[1], [filled[0], *filled[2:]])
        if candidate in true:
            return True
    return False


def _union(captions: Sequence[str]) -> set[Tuple]:
    return set().union(*map(parse_caption, captions))


def _f1(said: int, right: int, wanted: int, hit: int) -> F1:
    precision = right / said if said else 0.0
    recall = hit / wanted if wanted else 0.0
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    return F1(precision=precision, recall=recall, f1=f1, said=said, wanted=wanted)
