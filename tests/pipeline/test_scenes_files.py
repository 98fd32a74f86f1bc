"""Generated scenes on disk: the same for the same seed, pictures, boxes, formats, the command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from caption.data import read_captions
from pipeline.cli import main
from pipeline.scenes.detections import detect
from pipeline.scenes.draw import PALETTE, draw
from pipeline.scenes.grammar import parse_caption, words_of
from pipeline.scenes.scene import draw_scene, generator
from pipeline.scenes.truth import scene_f1
from pipeline.scenes.world import World
from pipeline.scenes.write import assign_splits, read_scenes, write_scenes

DEFAULT = World()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scenes") / "s"
    write_scenes(out, 16, 5, 96, DEFAULT)
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


# --- the same again


def test_same_seed_same_bytes_and_other_seed_other(folder: Path, tmp_path: Path) -> None:
    write_scenes(tmp_path / "a", 16, 5, 96, DEFAULT)
    write_scenes(tmp_path / "b", 16, 6, 96, DEFAULT)
    first, again, other = files_of(folder), files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert first == again
    assert len(first) == 21
    assert first["images/scene_000003.jpg"] != other["images/scene_000003.jpg"]


def test_an_image_does_not_depend_on_how_many_follow(folder: Path, tmp_path: Path) -> None:
    write_scenes(tmp_path / "a", 12, 5, 96, DEFAULT)
    short, long = tmp_path / "a", folder
    name = "images/scene_000011.jpg"
    assert (short / name).read_bytes() == (long / name).read_bytes()
    for file in ("dataset_scenes.json", "scenes.json"):
        a, b = load(short / file), load(long / file)
        assert (a["images"] if "images" in a else a) == (b["images"] if "images" in b else b)[:12]
    assert load(short / "boxes.json").items() <= load(long / "boxes.json").items()


def test_held_out_words_are_only_in_other_splits(tmp_path: Path) -> None:
    world = World(held_out=("circle", "square"))
    write_scenes(tmp_path / "s", 30, 1, 64, world, (0.5, 0.0, 0.5))
    words: dict[str, set[str]] = {"train": set(), "test": set()}
    for row in load(tmp_path / "s/dataset_scenes.json")["images"]:
        for sentence in row["sentences"]:
            parse_caption(sentence["raw"])
            words[row["split"]].update(sentence["tokens"])
    held = {"circle", "circles", "disc", "discs", "square", "squares", "box", "boxes"}
    assert not held & words["train"]
    assert {"circle", "square"} <= words["test"]
    shapes = {t.shape for s in read_scenes(tmp_path / "s/scenes.json").values() for t in s.things}
    assert {"circle", "square"} <= shapes


# --- pictures and boxes


def test_an_object_shows_its_colour_where_it_is() -> None:
    world = World(lighting=0.0, textured=0.0, overlap=0.0, inside=0.0, tiny=0.0)
    for index in range(12):
        scene = draw_scene(1, index, world)
        pixels = np.asarray(draw(scene, generator(1, index, "look"), 160), dtype=float)
        for thing in scene.things:
            if thing.shape in ("ring", "moon"):
                continue
            seen = pixels[int(thing.y * 160), int(thing.x * 160)]
            away = {name: float(np.abs(seen - rgb).max()) for name, rgb in PALETTE.items()}
            assert min(away, key=lambda name: away[name]) == thing.colour


def test_detections_have_the_faults_of_the_world() -> None:
    world = World(misses=0.05, duplicates=0.1, distractors=(2, 6))
    objects = boxes = exact = 0
    for index in range(100):
        scene = draw_scene(7, index, world)
        found = detect(scene, generator(7, index, "detections"), world, 224)
        assert len({len(found[k]) for k in ("boxes", "classes", "attributes", "scores")}) == 1
        for x1, y1, x2, y2 in found["boxes"]:
            assert 0 <= x1 < x2 <= 224 and 0 <= y1 < y2 <= 224
        objects += len(scene.things)
        boxes += len(found["boxes"])
        exact += sum(score > 0.75 for score in found["scores"])
        assert found["scores"] == sorted(found["scores"], reverse=True)
    assert abs((boxes - objects * 0.95 * 1.1) / 100 - 4) < 0.5
    assert 0.7 * objects < exact < 0.95 * objects


def test_there_is_always_a_box() -> None:
    world = World(misses=1.0, distractors=(0, 0))
    scene = draw_scene(1, 0, world)
    assert len(detect(scene, generator(1, 0, "detections"), world, 64)["boxes"]) == 1


# --- files


def test_the_folder_holds_what_the_formats_want(folder: Path) -> None:
    data = read_captions(folder / "dataset_scenes.json")
    ids = [f"scene_{index:06d}" for index in range(16)]
    assert [image.image_id for image in data.images] == ids
    content = load(folder / "dataset_scenes.json")
    assert content["dataset"] == "scenes"
    sentence_ids = [s["sentid"] for row in content["images"] for s in row["sentences"]]
    assert sentence_ids == list(range(80))
    for row in content["images"]:
        assert row["sentids"] == [s["sentid"] for s in row["sentences"]]
        with Image.open(folder / "images" / row["filename"]) as image:
            assert image.size == (96, 96) and image.mode == "RGB"
        for sentence in row["sentences"]:
            assert sentence["tokens"] == words_of(sentence["raw"])
            assert sentence["imgid"] == row["imgid"]
    vocab, boxes = load(folder / "boxes_vocab.json"), load(folder / "boxes.json")
    assert sorted(boxes) == ids
    assert max(c for b in boxes.values() for c in b["classes"]) < len(vocab["classes"]) == 10
    assert max(c for b in boxes.values() for c in b["attributes"]) < len(vocab["attributes"]) == 8


def test_scenes_read_back_as_they_were(folder: Path) -> None:
    read = read_scenes(folder / "scenes.json")
    drawn = draw_scene(5, 7, DEFAULT)
    again = read[drawn.id]
    assert again.facts == drawn.facts and again.to_dict() == drawn.to_dict()
    rows = load(folder / "dataset_scenes.json")["images"]
    references = {Path(r["filename"]).stem: [s["raw"] for s in r["sentences"]] for r in rows}
    scores = scene_f1({name: texts[0] for name, texts in references.items()}, read, references)
    assert all(score.precision == 1.0 for score in scores.values())


def test_splits_are_disjoint_and_sized() -> None:
    splits = assign_splits(1500, (0.8, 0.1, 0.1))
    assert Counter(splits) == {"train": 1200, "val": 150, "test": 150}
    assert assign_splits(100, (0.8, 0.1, 0.1)) == splits[:100]
    assert set(assign_splits(7, (1.0, 0.0, 0.0))) == {"train"}


def test_splits_by_number(tmp_path: Path) -> None:
    made = write_scenes(tmp_path / "s", 7, 5, 64, DEFAULT, (4, 1, 2))
    assert made.splits == {"train": 4, "val": 1, "test": 2}
    assert not write_scenes(tmp_path / "s", 7, 5, 64, DEFAULT, (4, 1, 2)).made


# --- the command


def test_the_command_writes_once_and_refuses_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s"
    call: list[str | Path] = [
        "scenes",
        "--out",
        out,
        "--images",
        "6",
        "--size",
        "64",
        "--seed",
        "2",
    ]
    assert run(*call, "--sheet", tmp_path / "sheet.png") == 0
    printed = capsys.readouterr().out
    assert f"pipeline extract {out}/images --preset imagenet-regions --boxes {out}/boxes" in printed
    times = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    assert run(*call, "--json") == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["made"] is False and outcome["images"] == 6
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == times
    assert run(*call[:-1], "3", "-o", "signed=1") == 1
    error = capsys.readouterr().err
    assert "seed: 2 / 3" in error and "world.signed: 0.5 / 1.0" in error
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == times
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (930, 150)


def test_an_interrupted_call_is_finished(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "s"
    write_scenes(out, 16, 5, 96, DEFAULT)
    (out / "world.json").unlink()
    (out / "images/scene_000002.jpg").write_bytes(b"half")
    (out / "images/scene_000900.jpg").write_bytes(b"of a larger call")
    assert write_scenes(out, 16, 5, 96, DEFAULT).made
    assert files_of(out) == files_of(folder)
    (out / "images/scene_000004.jpg").unlink()
    assert write_scenes(out, 16, 5, 96, DEFAULT).made
    assert files_of(out) == files_of(folder)


def test_other_peoples_files_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = tmp_path / "s/images/holiday.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"photo")
    assert run("scenes", "--out", tmp_path / "s", "--images", "2", "--size", "64") == 1
    assert "holiday.jpg" in capsys.readouterr().err
    assert list((tmp_path / "s").rglob("*.*")) == [photo]


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["--images", "0"], 2, "0 is not in the range x>=1"),
        (["--size", "8"], 1, "size is 8"),
        (["--splits", "0.8/0.1/0.3"], 1, "wanted shares with the sum 1"),
        (["--images", "9", "--splits", "5/2/3"], 1, "counts with the sum of the images, 9"),
        (["--splits", "0.8"], 2, "wanted three shares"),
        (["-o", "signd=1"], 2, "did you mean 'signed'"),
    ],
)
def test_wrong_options(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    complaint: str,
) -> None:
    assert run("scenes", "--out", tmp_path / "s", *options) == code
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
