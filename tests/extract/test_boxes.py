"""Given boxes: regions where they are right, a reason where they are not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from extract import presets
from extract.boxes import read_boxes
from extract.cache import FeatureCache
from extract.errors import ExtractError, ImageError
from extract.extractor import Extractor
from extract.run import extract, extract_in_memory
from extract.sources import Source, find_sources


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(2):
        Image.new("RGB", (60 + number, 40), (200, 90 * number, 30)).save(
            folder / f"p00{number}.png"
        )
    return folder


def boxed(tmp_path: Path, entries: object, **settings: object) -> Extractor:
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(entries))
    preset = presets.Preset(size=64, batch=4, **settings)
    return Extractor("small", preset, "cpu", read_boxes(path))


def test_regions_and_grids_in_one_pass(photos: Path, tmp_path: Path) -> None:
    sources = find_sources([photos])[:2]
    entry = {"boxes": [[0, 0, 20, 20], [-0.5, 3, 25, 29.5]], "classes": [3, 1], "scores": [0.5, 1]}
    extractor = boxed(tmp_path, {s.image_id: entry for s in sources}, levels=("x8", "head"))
    extract(sources, extractor, tmp_path / "out")
    found = FeatureCache(tmp_path / "out").read("p000")
    assert found.streams["grids"].shape == (4, 1280)
    assert found.streams["regions"].shape == (2, 240 + 1280)
    assert found.boxes["regions"].tolist() == [[0, 0, 20, 20], [0, 3, 25, 29.5]]  # clipped
    assert found.extras["regions"]["objects"].tolist() == [3, 1]
    assert found.extras["regions"]["scores"].tolist() == [0.5, 1]
    meta = FeatureCache(tmp_path / "out").meta
    assert meta["boxes"]["sha256"] and "boxes" not in meta["settings"]


def test_a_region_sees_its_place(tmp_path: Path) -> None:
    """Equal things in different places look alike; another thing does not."""
    image = Image.new("RGB", (200, 100), "white")
    pen = ImageDraw.Draw(image)
    for x, colour in ((10, "red"), (80, "red"), (150, "blue")):
        pen.rectangle((x, 30, x + 40, 70), fill=colour)
    image.save(tmp_path / "a.png")
    corners = [[x, 30, x + 40, 70] for x in (10, 80, 150)]
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"a": corners}))
    extractor = Extractor("r", presets.get("imagenet-regions"), "cpu", read_boxes(path))
    (found,), failures = extract_in_memory([Source("a", tmp_path / "a.png")], extractor)
    rows = found.streams["regions"][:, :912]  # the levels of strides 8 and 16
    same, other = np.linalg.norm(rows[0] - rows[1]), np.linalg.norm(rows[0] - rows[2])
    assert not failures and other > 2 * same


@pytest.mark.parametrize(
    ("entry", "reason", "detail"),
    [
        (None, "no-boxes", "has no entry"),
        ([], "no-boxes", "lists none"),
        ({"classes": []}, "bad-boxes", "wanted"),
        ([[1, 2, 3]], "bad-boxes", "wanted"),
        ([[1, 2, 3, "x"]], "bad-boxes", "wanted"),
        ([[0, 0, 10, 10], [0, 0, 1000, 10]], "bad-boxes", "box 1 is"),
        ([[5, 5, 5, 9]], "bad-boxes", "x1 < x2"),
        ([[0, 0, float("nan"), 9]], "bad-boxes", "wanted"),
        ({"boxes": [[0, 0, 9, 9]], "classes": [1, 2]}, "bad-boxes", "classes: wanted 1 values"),
        ({"boxes": [[0, 0, 9, 9]], "classes": ["dog"]}, "bad-boxes", "one integer a box"),
    ],
)
def test_bad_boxes_are_told(tmp_path: Path, entry: object, reason: str, detail: str) -> None:
    (tmp_path / "b.json").write_text(
        json.dumps({"other": entry} if entry is None else {"a": entry})
    )
    with pytest.raises(ImageError) as caught:
        read_boxes(tmp_path / "b.json").of("a", "a.png", 60, 40)
    assert caught.value.reason == reason
    assert detail in caught.value.detail and "b.json" in caught.value.detail


def test_bad_boxes_fail_only_their_image(photos: Path, tmp_path: Path) -> None:
    sources = find_sources([photos])
    records, (failure,) = extract_in_memory(sources, boxed(tmp_path, {"p001": [[0, 0, 9, 9]]}))
    assert [r.image_id for r in records] == ["p001"]
    assert (failure.source.image_id, failure.reason) == ("p000", "no-boxes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "wanted {image id"),
        ("{", "JSON"),
        ('{"a": {"boxes": [], "scores": []}, "b": []}', "'a' has scores, entry 'b' has none"),
    ],
)
def test_bad_box_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(ExtractError, match=message):
        read_boxes(tmp_path / "b.json")
