"""Generated scenes: what is in them, relations, captions that are true, and dials."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from evaluate.cider import cider_d
from pipeline.errors import PipelineError
from pipeline.recipe import override
from pipeline.scenes.captions import write_captions
from pipeline.scenes.draw import PALETTE
from pipeline.scenes.grammar import Meaning, ParseError, parse, parse_caption, words_of
from pipeline.scenes.outlines import ROOM
from pipeline.scenes.scene import Scene, Thing, draw_scene, generator
from pipeline.scenes.truth import parse_failures, scene_f1, true_tuples
from pipeline.scenes.words import NOUNS, SIGNED, UNSIGNED
from pipeline.scenes.world import World

DEFAULT = World()
COUNT = 120


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(3, index, DEFAULT) for index in range(COUNT)]


def captions_of(scene: Scene, world: World = DEFAULT, seed: int = 3) -> list[str]:
    index = int(scene.id.removeprefix("scene_"))
    return write_captions(scene, generator(seed, index, "captions"), world)


# --- what is in a scene


def test_scenes_are_as_the_world_says(scenes: list[Scene]) -> None:
    counts = [len(scene.things) for scene in scenes]
    assert min(counts) >= 2 and max(counts) <= 12
    shapes = Counter(thing.shape for scene in scenes for thing in scene.things)
    assert set(shapes) == set(NOUNS)
    assert shapes["circle"] > 2 * shapes["diamond"]
    assert {thing.colour for scene in scenes for thing in scene.things} == set(PALETTE)
    words = Counter(thing.word for scene in scenes for thing in scene.things)
    assert min(words.values()) > 0.15 * sum(words.values())
    for scene in scenes:
        for thing in scene.things:
            x1, y1, x2, y2 = thing.box()
            assert 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1


def test_objects_overlap_no_more_than_the_dial(scenes: list[Scene]) -> None:
    for scene in scenes:
        inside = {frozenset(places) for name, places in scene.facts if name == "inside"}
        for (i, a), (j, b) in itertools.combinations(enumerate(scene.things), 2):
            if frozenset((i, j)) in inside:
                continue
            p, q = a.box(), b.box()
            width, height = (min(p[k + 2], q[k + 2]) - max(p[k], q[k]) for k in (0, 1))
            smaller = min((r[2] - r[0]) * (r[3] - r[1]) for r in (p, q))
            if width > 0 and height > 0:
                assert width * height <= max(DEFAULT.overlap, 1e-9) * smaller * 1.001


def slow_facts(things: tuple[Thing, ...]) -> set[tuple[str, tuple[int, ...]]]:
    """The relations by the page in docs/scenes.md, pair by pair, type spread 0."""
    found: set[tuple[str, tuple[int, ...]]] = set()

    def nested(i: int, j: int) -> bool:
        a, b = things[i], things[j]
        room = ROOM.get(b.shape, 0.0) * b.size / 2
        return i > j and math.dist((a.x, a.y), (b.x, b.y)) + a.size / 2 <= room

    n = range(len(things))
    for i, j in itertools.product(n, n):
        if i == j:
            continue
        a, b = things[i], things[j]
        dx, dy = b.x - a.x, b.y - a.y
        d, radii = math.sqrt(dx * dx + dy * dy), a.size / 2 + b.size / 2
        if a.size / b.size >= 1.6:
            found.add(("bigger than", (i, j)))
        if nested(i, j):
            found.add(("inside", (i, j)))
        if nested(i, j) or nested(j, i):
            continue
        checks = {
            "left of": dx >= 0.1 and dx >= 1.5 * abs(dy),
            "right of": -dx >= 0.1 and -dx >= 1.5 * abs(dy),
            "above": dy >= 0.1 and dy >= 1.5 * abs(dx),
            "below": -dy >= 0.1 and -dy >= 1.5 * abs(dx),
            "near": d - radii <= 0.09,
            "far from": i < j and d >= 0.6,
            "beside": i < j and abs(dy) <= 0.05 and abs(dx) - radii <= 0.1,
            "stacked with": i < j and abs(dx) <= 0.05 and abs(dy) - radii <= 0.1,
            "aligned with": i < j and min(abs(dx), abs(dy)) <= 0.03 and d - radii >= 0.1,
        }
        found.update((name, (i, j)) for name, holds in checks.items() if holds)
        for k in n:
            if (
                j < k
                and i != k
                and not any(nested(*p) for p in itertools.permutations((i, j, k), 2))
            ):
                ends = np.array([[b.x, b.y], [things[k].x, things[k].y]])
                line = ends[1] - ends[0]
                length = float(np.linalg.norm(line))
                share = float((np.array([a.x, a.y]) - ends[0]) @ line) / max(length, 1e-9) ** 2
                off = float(np.linalg.norm(ends[0] + share * line - (a.x, a.y)))
                if length >= 0.35 and 0.3 <= share <= 0.7 and off <= 0.05:
                    found.add(("between", (i, j, k)))
    return found


def test_relations_agree_with_a_slow_check() -> None:
    world = World(type_spread=0.0)
    seen: Counter[str] = Counter()
    for index in range(80):
        scene = draw_scene(9, index, world)
        assert set(scene.facts) == slow_facts(scene.things)
        assert len(set(scene.facts)) == len(scene.facts)
        seen.update(name for name, _ in scene.facts)
    assert set(seen) == {*SIGNED, *UNSIGNED}


def test_near_and_size_words_depend_on_the_shape_by_the_dial() -> None:
    def words(world: World) -> set[str]:
        drawn = [draw_scene(2, index, world).things for index in range(60)]
        return {t.word for things in drawn for t in things if 0.135 < t.size < 0.15}

    assert words(World(type_spread=0.0)) == {"small"}
    assert words(World(type_spread=0.3)) == {"small", "medium"}


# --- captions


def grounded(meaning: Meaning, scene: Scene) -> bool:
    """Whether different objects can be found for the mentions so that all that is said holds."""
    facts = set(scene.facts)
    facts |= {
        (name, places[::-1])
        for name, places in facts
        if len(places) == 2 and name in ("far from", "beside", "stacked with", "aligned with")
    }
    facts |= {(name, (p[0], p[2], p[1])) for name, p in facts if name == "between"}
    choices = []
    for mention in meaning.mentions:
        fits = [
            i
            for i, thing in enumerate(scene.things)
            if thing.shape == mention.shape and mention.attributes <= thing.attributes
        ]
        choices.append([c for c in itertools.combinations(fits, mention.count)])
        if mention.count > 1 and len(fits) != mention.count:
            return False
    for chosen in itertools.product(*choices):
        flat = [place for group in chosen for place in group]
        if len(set(flat)) == len(flat) and all(
            (name, tuple(chosen[m][0] for m in places)) in facts
            for name, places in meaning.relations
        ):
            return True
    return False


def test_captions_parse_and_are_true_of_their_scene(scenes: list[Scene]) -> None:
    clauses: Counter[int] = Counter()
    words: Counter[str] = Counter()
    for scene in scenes:
        captions = captions_of(scene)
        assert len(captions) == 5
        for caption in captions:
            assert grounded(parse(caption), scene), caption
            assert parse_caption(caption) <= true_tuples(scene)
            assert len(words_of(caption)) <= DEFAULT.longest
            words.update(words_of(caption))
            clauses[len(parse(caption).relations)] += 1
    assert 90 <= len(words) <= 110
    assert {"it", "another", "other", "two", "the"} <= set(words)
    assert {0, 1, 2} <= set(clauses)


def test_the_parser_reads_what_a_caption_means() -> None:
    assert parse_caption("A big red star is left of a blue disc and it is near a hoop.") == {
        *(("star",), ("star", "large"), ("star", "red"), ("circle",), ("circle", "blue")),
        *(("ring",), ("star", "left of", "circle"), ("star", "near", "ring")),
    }
    assert parse_caption("We see two red crosses with dots.") == {
        *(("cross",), ("cross", "red"), ("cross", "dotted"), ("cross", "two")),
    }
    other = parse("A red heart is around a star while the other one is smaller than a moon.")
    assert other.mentions[2].attributes == {"red"}
    assert other.relations == [("inside", (1, 0)), ("bigger than", (3, 2))]
    between = parse_caption("A star is between a moon and an arrow")
    assert ("star", "between", "arrow", "moon") in between


@pytest.mark.parametrize(
    ("caption", "complaint"),
    [
        ("", "a noun phrase"),
        ("a red", "a noun"),
        ("it is near a star", "points back to nothing"),
        ("another star is near a moon", "no star was mentioned"),
        ("a star is near the moon", "no moon was mentioned"),
        ("a red blue star is near a moon", "one colour"),
        ("a star near a moon", "a verb"),
        ("a star is near a moon it is left of a ring", "a joiner"),
        ("a star is between a moon", "'and' after between"),
        ("there is a dog", "a noun"),
    ],
)
def test_what_the_grammar_cannot_say_is_an_error(caption: str, complaint: str) -> None:
    with pytest.raises(ParseError, match=complaint):
        parse_caption(caption)


def test_f1_counts_facts_and_parse_failures() -> None:
    things = (
        Thing(shape="star", colour="red", texture="plain", size=0.2, x=0.2, y=0.5, word="medium"),
        Thing(shape="moon", colour="blue", texture="plain", size=0.2, x=0.6, y=0.5, word="medium"),
    )
    facts = (("left of", (0, 1)), ("right of", (1, 0)))
    scene = Scene(id="a", things=things, facts=facts, backdrop="sand", light=(1, 1, 1))
    right, wrong = "A red star is left of a moon.", "A blue star is right of a moon."
    scores = scene_f1({"a": right}, {"a": scene}, {"a": [right]})
    assert {kind: score.f1 for kind, score in scores.items()} == {
        "objects": 1.0,
        "attributes": 1.0,
        "relations": 1.0,
    }
    scores = scene_f1({"a": right}, {"a": scene})
    assert scores["objects"].recall == 1.0 and scores["attributes"].recall == 1 / 6
    assert scores["relations"].precision == 1.0 and scores["relations"].recall == 0.5
    scores = scene_f1({"a": wrong}, {"a": scene})
    assert scores["objects"].f1 == 1.0
    assert scores["attributes"].f1 == scores["relations"].f1 == 0.0
    scores = scene_f1({"a": right, "b": "a a a"}, {"a": scene, "b": scene})
    assert scores["objects"].precision == 2 / 3 and scores["objects"].recall == 0.5
    assert list(parse_failures({"a": right, "b": "a a a"})) == ["b"]
    vague = scene_f1({"a": "there is a blue shape"}, {"a": scene})
    assert vague["attributes"].precision == 1.0
    with pytest.raises(PipelineError, match="'c'"):
        scene_f1({"c": right}, {"a": scene})


def test_references_agree_far_more_than_captions_of_other_images(scenes: list[Scene]) -> None:
    texts = {s.id: [" ".join(words_of(c)) for c in captions_of(s)] for s in scenes}
    own = cider_d({k: v[1:] for k, v in texts.items()}, {k: v[0] for k, v in texts.items()})[0]
    ids = list(texts)
    moved = {k: texts[other][0] for k, other in zip(ids, ids[1:] + ids[:1], strict=True)}
    other = cider_d({k: v[1:] for k, v in texts.items()}, moved)[0]
    assert own > 0.7
    assert own > 3 * other


# --- dials


def relation_share(world: World) -> tuple[int, int]:
    told = [
        name
        for index in range(40)
        for caption in captions_of(draw_scene(4, index, world), world)
        for name, _ in parse(caption).relations
    ]
    return sum(name in SIGNED for name in told), len(told)


def test_the_dial_of_signed_relations() -> None:
    none, all_of_them = (relation_share(World(signed=share)) for share in (0.0, 1.0))
    assert none[0] == 0 and none[1] > 50
    assert all_of_them[0] == all_of_them[1] > 50


def test_dials_turn_what_they_name() -> None:
    few = World(objects=(2, 3), mean_objects=2.5)
    assert {len(draw_scene(1, i, few).things) for i in range(30)} == {2, 3}
    alike = [draw_scene(1, i, World(look_alikes=1.0, inside=0.0)).things for i in range(20)]
    assert all(len({(t.shape, t.colour) for t in things}) == 1 for things in alike)
    tiny = [draw_scene(1, i, World(tiny=1.0, look_alikes=0.0)).things for i in range(20)]
    assert all(3 <= t.size * 112 <= 8 and t.texture == "plain" for ts in tiny for t in ts)
    one = World(clauses=(1, 0, 0))
    said = [c for i in range(20) for c in captions_of(draw_scene(1, i, one), one)]
    assert all(len(parse(caption).relations) <= 1 for caption in said)
    dark = {draw_scene(1, i, World(lighting=0.0)).light for i in range(5)}
    assert dark == {(1.0, 1.0, 1.0)}


def test_no_caption_is_longer_than_the_dial() -> None:
    world = World(longest=16, clauses=(0, 0, 1), synonyms=0.5, attributes=(1, 1, 1))
    drawn = [draw_scene(6, index, world) for index in range(30)]
    assert max(len(words_of(c)) for scene in drawn for c in captions_of(scene, world)) == 16


@pytest.mark.parametrize(
    ("dials", "complaint"),
    [
        (["signd=1"], "did you mean 'signed'"),
        (["signed=2"], "signed is 2.0, wanted a share from 0 to 1"),
        (["signed=much"], "wanted a number"),
        (["objects=[5,2]"], "ascending"),
        (["held_out=[circel]"], "did you mean 'circle'"),
        (["mean_objects=40"], "within objects, 2 to 12"),
        (["clauses=[0,0,0]"], "not all 0"),
    ],
)
def test_wrong_dials_are_named(dials: list[str], complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint):
        override(DEFAULT, dials)


def test_lists_need_no_brackets() -> None:
    turned = override(DEFAULT, ["objects=3,6", "held_out=star,moon", "clauses=1,0,0"])
    assert turned == World(objects=(3, 6), held_out=("star", "moon"), clauses=(1.0, 0.0, 0.0))
    assert override(DEFAULT, ["objects=[3,6]", "held_out=star"]).held_out == ("star",)
