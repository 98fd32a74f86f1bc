"""Every dial of the world of scenes turns what it names, and the more it is turned the more."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.scenes.breakdown import fits
from pipeline.scenes.captions import write_captions
from pipeline.scenes.detections import detect
from pipeline.scenes.grammar import parse, words_of
from pipeline.scenes.relations import LARGE, SMALL
from pipeline.scenes.scene import TINY, Scene, Thing, draw_scene, generator
from pipeline.scenes.words import COLOURS, NOUNS, PARTNERS, SIGNED
from pipeline.scenes.world import World

COUNT = 25
SIDE = 224
PARTNER = {a: b for pair in PARTNERS for a, b in (pair, pair[::-1])}
Measure = Callable[[World], float]


def scenes(world: World) -> list[Scene]:
    return [draw_scene(8, index, world) for index in range(COUNT)]


def captions(world: World, unspoken: tuple[str, ...] = ()) -> list[tuple[Scene, list[str]]]:
    return [
        (scene, write_captions(scene, generator(8, index, "captions"), world, unspoken))
        for index, scene in enumerate(scenes(world))
    ]


def texts(world: World) -> list[str]:
    return [text for _, several in captions(world) for text in several]


def boxes(world: World) -> list[tuple[Scene, dict[str, Any]]]:
    return [
        (scene, detect(scene, generator(8, index, "detections"), world, SIDE))
        for index, scene in enumerate(scenes(world))
    ]


def share_of_things(is_so: Callable[[Thing, Scene], bool]) -> Measure:
    def measure(world: World) -> float:
        return float(np.mean([is_so(thing, s) for s in scenes(world) for thing in s.things]))

    return measure


def share_of_words(*wanted: str) -> Measure:
    def measure(world: World) -> float:
        return float(np.mean([word in wanted for text in texts(world) for word in words_of(text)]))

    return measure


def facts_per_thing(*names: str) -> Measure:
    def measure(world: World) -> float:
        found = [(sum(name in names for name, _ in s.facts), len(s.things)) for s in scenes(world)]
        return sum(facts for facts, _ in found) / sum(things for _, things in found)

    return measure


def objects(world: World) -> float:
    return float(np.mean([len(scene.things) for scene in scenes(world)]))


def most_objects(world: World) -> float:
    return max(len(scene.things) for scene in scenes(world))


def two_commonest_shapes(world: World) -> float:
    shapes = Counter(thing.shape for scene in scenes(world) for thing in scene.things)
    return sum(count for _, count in shapes.most_common(2)) / shapes.total()


def with_its_partner(thing: Thing, scene: Scene) -> bool:
    return any(other.shape == PARTNER[thing.shape] for other in scene.things)


def has_a_double(thing: Thing, scene: Scene) -> bool:
    same = (thing.shape, thing.colour)
    return sum((other.shape, other.colour) == same for other in scene.things) > 1


def largest_overlap(world: World) -> float:
    worst = 0.0
    for scene in scenes(world):
        found = [thing.box() for thing in scene.things]
        for a, b in ((a, b) for a in found for b in found if a is not b):
            width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            area = (a[2] - a[0]) * (a[3] - a[1])
            worst = max(worst, max(width, 0) * max(height, 0) / area)
    return worst


def called_otherwise(thing: Thing, scene: Scene) -> bool:
    """Whether its size word is another than that of the average shape's thresholds."""
    plain = "small" if thing.size < SMALL else "large" if thing.size >= LARGE else "medium"
    return thing.word != plain


def spread_of_light(world: World) -> float:
    return float(np.std([scene.light for scene in scenes(world)]))


def captions_each(world: World) -> float:
    return float(np.mean([len(several) for _, several in captions(world)]))


def words_at_most(world: World) -> float:
    return max(len(words_of(text)) for text in texts(world))


def relations_each(world: World) -> float:
    return float(np.mean([len(parse(text).relations) for text in texts(world)]))


def signed_share(world: World) -> float:
    return float(np.mean([n in SIGNED for text in texts(world) for n, _ in parse(text).relations]))


def size_of_the_first(world: World) -> float:
    sizes = [
        np.mean([t.size for t in scene.things if fits(parse(text).mentions[0], t)])
        for scene, several in captions(world)
        for text in several
    ]
    return float(np.mean(sizes))


def different_first_shapes(world: World) -> float:
    firsts = [{parse(text).mentions[0].shape for text in several} for _, several in captions(world)]
    return float(np.mean([len(shapes) for shapes in firsts]))


def boxes_each(world: World) -> float:
    return float(np.mean([len(found["boxes"]) for _, found in boxes(world)]))


def way_to_the_nearest(world: World) -> float:
    """How far the boxes are from true ones, in pixels of their edges."""
    ways = []
    for scene, found in boxes(world):
        true = np.array([thing.box(SIDE) for thing in scene.things])  # (T, 4)
        rows = np.array(found["boxes"])  # (N, 4)
        ways += np.abs(rows[:, None] - true[None]).max(axis=2).min(axis=1).tolist()
    return float(np.mean(ways))


QUIET: dict[str, Any] = {"misses": 0.0, "duplicates": 0.0, "distractors": (0, 0)}
RARER = tuple(word for rows in NOUNS.values() for pair in rows[1:] for word in pair)

# dial -> settings of the other dials, values in ascending order of the measure, the measure
TURNS: dict[str, tuple[dict[str, Any], tuple[Any, ...], Measure]] = {
    "objects": ({"mean_objects": 4.0}, ((4, 4), (2, 7), (2, 20)), most_objects),
    "mean_objects": ({}, (2.0, 4.0, 8.0, 12.0), objects),
    "long_tail": ({"look_alikes": 0.0}, (0.0, 1.0, 3.0), two_commonest_shapes),
    "co_occurrence": ({"look_alikes": 0.0}, (0.0, 0.5, 1.0), share_of_things(with_its_partner)),
    "look_alikes": ({}, (0.0, 0.4, 0.8), share_of_things(has_a_double)),
    "tiny": ({}, (0.0, 0.3, 0.9), share_of_things(lambda t, s: TINY[0] <= t.size <= TINY[1])),
    "textured": ({}, (0.0, 0.5, 1.0), share_of_things(lambda t, s: t.texture != "plain")),
    "overlap": ({"inside": 0.0, "mean_objects": 8.0}, (0.0, 0.1, 0.4), largest_overlap),
    "inside": ({}, (0.0, 0.3, 1.0), facts_per_thing("inside")),
    "arranged": ({}, (0.0, 0.9), facts_per_thing("beside", "stacked with", "aligned with")),
    "type_spread": ({}, (0.0, 0.15, 0.4), share_of_things(called_otherwise)),
    "lighting": ({}, (0.0, 0.5, 1.0, 2.0), spread_of_light),
    "captions": ({}, (1, 5), captions_each),
    "clauses": ({}, ((1, 0, 0), (0, 1, 0), (0, 0, 1)), share_of_words("and", "while")),
    "longest": ({"clauses": (0, 0, 1)}, (16, 20, 26), words_at_most),
    "relations": ({"pronouns": 0.0}, (0.0, 0.5, 1.0), relations_each),
    "signed": ({}, (0.0, 0.5, 1.0), signed_share),
    "pronouns": ({}, (0.0, 0.5, 1.0), share_of_words("it", "one")),
    "synonyms": ({}, (0.0, 0.3, 1.0), share_of_words(*RARER)),
    "attributes": ({}, ((0, 0, 0), (0.5, 0, 0), (1, 0, 0)), share_of_words(*COLOURS)),
    "focus": ({}, (0.0, 1.0, 4.0), size_of_the_first),
    "wander": ({"focus": 6.0}, (0.0, 3.0), different_first_shapes),
    "misses": ({**QUIET}, (0.9, 0.4, 0.0), boxes_each),
    "duplicates": ({**QUIET}, (0.0, 0.5, 1.0), boxes_each),
    "jitter": ({**QUIET, "duplicates": 1.0}, (0.0, 0.1, 0.3), way_to_the_nearest),
    "distractors": ({}, ((0, 0), (2, 6), (9, 9)), boxes_each),
}
NULLS = {  # dial -> the measure where the dial is turned to nothing
    **{"tiny": 0.0, "textured": 0.0, "overlap": 0.0, "inside": 0.0, "type_spread": 0.0},
    **{"lighting": 0.0, "relations": 0.0, "signed": 0.0, "synonyms": 0.0, "attributes": 0.0},
}


@pytest.mark.parametrize("dial", TURNS)
def test_a_dial_turns_what_it_names(dial: str) -> None:
    others, values, measure = TURNS[dial]
    settings = {name: value for name, value in others.items() if name != dial}
    measured = [measure(World(**{**settings, dial: value})) for value in values]
    assert measured == sorted(set(measured)), measured
    if dial in NULLS:
        assert measured[0] == pytest.approx(NULLS[dial], abs=1e-6)


def test_held_out_shapes_are_not_spoken_of() -> None:
    hidden = ("circle", "square")
    names = {word for shape in hidden for pair in NOUNS[shape] for word in pair}
    said = {w for _, several in captions(World(), hidden) for t in several for w in words_of(t)}
    assert not said & names and {"star", "triangle"} <= said
    assert names & {word for text in texts(World()) for word in words_of(text)}


def test_no_dial_is_forgotten() -> None:
    assert {field.name for field in dataclasses.fields(World)} == {*TURNS, "held_out"}


def test_dials_leave_the_rest_alone() -> None:
    default = scenes(World())
    lit = scenes(World(lighting=2.0))
    assert [s.things for s in lit] == [s.things for s in default]  # the same scenes, other light
    chatty = World(clauses=(0, 0, 1), signed=1.0, misses=0.5)
    assert scenes(chatty) == default
