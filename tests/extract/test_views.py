"""Other views of a photograph: as if the file held them, and known by their settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from extract import presets
from extract.boxes import read_boxes
from extract.errors import ExtractError
from extract.extractor import Extractor
from extract.run import extract_in_memory
from extract.sources import find_sources
from extract.views import view_of

SMALL = replace(presets.PRESETS["imagenet-grid"], size=64, batch=2)


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 255, (90, 120, 3), dtype=np.uint8)


def found_in(part: np.ndarray, whole: np.ndarray) -> bool:
    high, wide = part.shape[:2]
    places = np.argwhere((whole == part[0, 0]).all(axis=2))
    return any(np.array_equal(part, whole[y : y + high, x : x + wide]) for y, x in places)


def test_a_part_is_one_of_the_picture_and_the_id_decides(picture: np.ndarray) -> None:
    parts = [view_of(picture, "cropped", f"image {n}") for n in range(40)]
    mirrored = 0
    for number, part in enumerate(parts):
        assert np.array_equal(part, view_of(picture, "cropped", f"image {number}"))
        shares = part.shape[0] / 90, part.shape[1] / 120
        assert all(0.71 < share < 0.96 for share in shares)
        upright = found_in(part, picture)
        mirrored += not upright
        assert upright or found_in(part[:, ::-1], picture)
    assert 10 < mirrored < 30
    assert len({part.shape for part in parts}) > 10
    others = [view_of(picture, "cropped-2", f"image {n}") for n in range(40)]
    same = [np.array_equal(one, other) for one, other in zip(parts, others, strict=True)]
    assert not any(same)


def test_features_of_a_mirrored_view_are_those_of_a_mirrored_file(
    picture: np.ndarray, tmp_path: Path
) -> None:
    upright, turned = tmp_path / "upright.png", tmp_path / "turned.png"
    Image.fromarray(picture).save(upright)
    ImageOps.mirror(Image.fromarray(picture)).save(turned)
    whole = Extractor("grid", SMALL, "cpu", None)
    mirrored = Extractor("grid", replace(SMALL, view="mirrored"), "cpu", None)
    (view,), _ = extract_in_memory(find_sources([upright]), mirrored)
    (other,), _ = extract_in_memory(find_sources([turned]), whole)
    (plain,), _ = extract_in_memory(find_sources([upright]), whole)
    assert np.array_equal(view.streams["grids"], other.streams["grids"])
    assert not np.allclose(view.streams["grids"], plain.streams["grids"], atol=0.1)
    assert mirrored.meta["settings"] == {**whole.meta["settings"], "view": "mirrored"}


def test_a_view_has_a_name_and_no_boxes(tmp_path: Path) -> None:
    with pytest.raises(ExtractError, match="view is 'upside', wanted one of whole, mirrored"):
        Extractor("grid", replace(SMALL, view="upside"), "cpu", None)
    boxes = tmp_path / "boxes.json"
    boxes.write_text('{"a": [[0, 0, 5, 5]]}')
    with pytest.raises(ExtractError, match="view is 'cropped', but boxes are places in the whole"):
        Extractor("grid", replace(SMALL, view="cropped"), "cpu", read_boxes(boxes))
