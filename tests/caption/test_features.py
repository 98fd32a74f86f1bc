"""Batches of features: nothing is made up where a cache has no boxes or sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from caption.errors import CaptionError
from caption.features import collate
from caption.registry import MODELS
from extract.cache import ImageFeatures
from tests.caption.toy import WIDTH


def image(name: str, rows: int, boxes: bool = True) -> ImageFeatures:
    corners = np.tile(np.array([[0, 0, 8, 6]], dtype=np.float32), (rows, 1))
    return ImageFeatures(
        image_id=name,
        width=8,
        height=6,
        streams={"grids": np.ones((rows, WIDTH), dtype=np.float16)},
        boxes={"grids": corners} if boxes else {},
        grid_shape={},
    )


def test_padding_is_masked() -> None:
    batch = collate([image("a", 2), image("b", 3)], ["grids"])
    assert batch.mask["grids"].tolist() == [[True, True, False], [True, True, True]]
    boxes, sizes = batch.located("grids")
    assert boxes[0, 0].tolist() == [0, 0, 8, 6] and sizes.tolist() == [[8, 6], [8, 6]]


def test_places_that_are_not_known_are_an_error() -> None:
    without_boxes = collate([image("a", 2), image("b", 2, boxes=False)], ["grids"])
    with pytest.raises(CaptionError, match="'grids', and some images have no boxes"):
        without_boxes.located("grids")
    without_size = collate([replace(image("a", 2), width=0, height=0)], ["grids"])
    with pytest.raises(CaptionError, match="no known width and height.*--sizes"):
        without_size.located("grids")


def test_models_ask_for_places_only_where_they_use_them() -> None:
    batch = collate([image("a", 2, boxes=False)], ["grids"])
    entry = MODELS["transformer"]
    sizes = {"width": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 1}
    blind = entry.build(entry.config(**sizes), {"grids": WIDTH}, 9)
    assert torch.isfinite(blind.encode(batch).levels[-1]).all()
    seeing = entry.build(entry.config(**sizes, boxes=True), {"grids": WIDTH}, 9)
    with pytest.raises(CaptionError, match="no boxes"):
        seeing.encode(batch)
