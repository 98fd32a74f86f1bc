"""Made-up records whose numbers follow from their id, so that any reader can check them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from extract.cache import ImageFeatures, Stream
from extract.writer import CacheWriter

META = {
    "preset": "toy",
    "settings": {"size": 224, "order": ["r", "g", "b"]},
    "weights": {"file": "toy.pth", "sha256": "ab" * 32},
    "versions": {"torch": "2.14.1"},
}
STREAMS = {"grids": Stream(8), "regions": Stream(6)}


def record(image_id: str) -> ImageFeatures:
    """Two by three cells and one to five regions of an image of 90 x 60 pixels."""
    draw = np.random.default_rng(zlib.crc32(image_id.encode()))
    regions = int(draw.integers(1, 6))
    low = draw.uniform(0, 30, size=(regions, 2))  # (N, 2)
    cells = [(30 * j, 30 * i, 30 * j + 30, 30 * i + 30) for i in range(2) for j in range(3)]
    return ImageFeatures(
        image_id=image_id,
        width=90,
        height=60,
        streams={
            "grids": draw.normal(size=(6, 8)).astype(np.float32),
            "regions": draw.normal(size=(regions, 6)).astype(np.float32),
        },
        boxes={
            "grids": np.array(cells, dtype=np.float32),
            "regions": np.hstack([low, low + draw.uniform(1, 30, size=(regions, 2))]).astype("f4"),
        },
        grid_shape={"grids": (2, 3)},
        extras={
            "regions": {
                "objects": draw.integers(0, 1600, size=regions).astype(np.int32),
                "object_scores": draw.random(size=regions).astype(np.float32),
            }
        },
        file=f"photos/{image_id}.jpg",
    )


def write_cache(folder: Path, *commits: Sequence[str], meta: dict = META) -> Path:
    """A cache with a shard for each list of ids."""
    with CacheWriter(folder, meta, STREAMS) as writer:
        for ids in commits:
            writer.commit([record(image) for image in ids])
    return folder


def assert_same(found: ImageFeatures, given: ImageFeatures) -> None:
    """What was read is what was given, rows rounded to float16."""
    assert (found.image_id, found.file) == (given.image_id, given.file)
    assert (found.width, found.height) == (given.width, given.height)
    assert found.grid_shape == given.grid_shape
    assert found.streams.keys() == given.streams.keys()
    for name, rows in given.streams.items():
        assert found.streams[name].dtype == np.float16
        np.testing.assert_array_equal(found.streams[name], rows.astype(np.float16))
        np.testing.assert_array_equal(found.boxes[name], given.boxes[name])
        assert found.extras.get(name, {}).keys() == given.extras.get(name, {}).keys()
        for key, values in given.extras.get(name, {}).items():
            np.testing.assert_array_equal(found.extras[name][key], values)


def flip(path: Path, place: int, mask: int = 0xFF) -> None:
    """Change the byte of a file at `place`."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ mask]))
