"""Captions of scenes by size, by relation and as a whole."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.errors import PipelineError
from pipeline.scenes.breakdown import BINS, breakdown, holds
from pipeline.scenes.captions import write_captions
from pipeline.scenes.grammar import parse
from pipeline.scenes.relations import facts
from pipeline.scenes.scene import Scene, Thing, draw_scene, generator
from pipeline.scenes.world import World

WORLD = World()


def thing(shape: str, colour: str, x: float, size: float = 0.2, word: str = "medium") -> Thing:
    return Thing(shape=shape, colour=colour, texture="plain", size=size, x=x, y=0.5, word=word)


@pytest.fixture
def stars() -> Scene:
    """A red star, a blue star to its right, a blue moon farther right, a tiny ring at the end."""
    things = (
        thing("star", "red", 0.15),
        thing("star", "blue", 0.4),
        thing("moon", "blue", 0.7),
        thing("ring", "green", 0.95, size=0.04, word="small"),
    )
    return Scene(
        id="a",
        things=things,
        facts=tuple(facts(things, WORLD)),
        backdrop="sand",
        light=(1.0, 1.0, 1.0),
    )


@pytest.mark.parametrize(
    ("caption", "true"),
    [
        ("A red star is left of a blue star.", True),
        ("A blue star is left of a red star.", False),  # though a star is left of a star
        ("A red star is left of another star and it is left of a moon.", True),
        ("A star is left of a moon while the other one is right of another star.", False),
        ("A blue star is left of a moon and it is right of another blue star.", False),
        ("There are two stars.", True),
        ("There are three stars.", False),
        ("There are two blue stars.", False),
        ("A star is between a moon and another star.", True),
        ("A moon is between a red star and another star.", False),
        ("A big ring is right of a moon.", False),
        ("A moon is in line with a star.", True),
        ("There is a blue shape.", True),
    ],
)
def test_a_caption_holds_as_a_whole(stars: Scene, caption: str, true: bool) -> None:
    assert holds(parse(caption), stars) is true


def test_recall_by_size_and_relations_by_name(stars: Scene) -> None:
    found = breakdown(
        {
            "a": "A blue star is left of a moon and it is left of a little ring.",
            "b": "A red star is right of a moon.",
            "c": "a red a",
        },
        {name: stars for name in "abc"},
    )
    assert (found.parsed.hit, found.consistent.hit, found.consistent.all) == (2, 1, 3)
    assert found.size_recall["tiny"].hit == 1 and found.size_recall["tiny"].all == 3
    assert found.size_recall["medium"].hit == 4 and found.size_recall["medium"].all == 9
    assert found.size_recall["large"].value is None
    assert found.relation_precision["left of"].value == 1.0
    assert found.relation_precision["right of"].value == 0.0
    assert found.relation_recall["left of"].hit == 2  # of six pairs, three times
    assert found.relation_recall["left of"].all == 18
    assert tuple(found.size_recall) == BINS
    assert found.to_dict()["consistent"] == {"hit": 1, "all": 3}


def test_recall_of_what_references_state(stars: Scene) -> None:
    said = "A blue star is left of a moon."
    texts = ["A star is left of a moon.", said, "A moon is right of a star."]
    found = breakdown({"a": said}, {"a": stars}, {"a": texts})
    assert found.relation_recall["left of"].hit == 1  # the red star's was stated, but not here
    assert found.relation_recall["left of"].all == 2
    assert found.relation_recall["right of"].hit == 0
    assert found.relation_recall["above"].value is None
    with pytest.raises(PipelineError, match="'b'"):
        breakdown({"b": said}, {"a": stars, "b": stars}, {"a": texts})
    with pytest.raises(PipelineError, match="'c'"):
        breakdown({"c": said}, {"a": stars})


def test_written_captions_hold_and_not_of_mirrored_scenes() -> None:
    captions, scenes, mirrored = {}, {}, {}
    for index in range(30):
        scene = draw_scene(2, index, WORLD)
        things = tuple(dataclasses.replace(t, x=1 - t.x) for t in scene.things)
        turned = dataclasses.replace(scene, things=things, facts=tuple(facts(things, WORLD)))
        texts = write_captions(scene, generator(2, index, "captions"), WORLD)
        for number, text in enumerate(texts):
            name = f"{index}-{number}"
            captions[name], scenes[name], mirrored[name] = text, scene, turned
    straight, reverse = breakdown(captions, scenes), breakdown(captions, mirrored)
    assert straight.consistent.value == straight.parsed.value == 1.0
    assert all(share.value in (1.0, None) for share in straight.relation_precision.values())
    for name in ("left of", "right of"):  # a look-alike on the other side is a rare excuse
        assert (reverse.relation_precision[name].value or 0) < 0.35
    for name in ("above", "below", "near", "beside", "inside", "between"):
        assert reverse.relation_precision[name].value in (1.0, None)
    assert (straight.size_recall["large"].value or 0) > 2 * (
        straight.size_recall["tiny"].value or 0
    )
