"""DLCT: regions, boxes, a 7 x 7 grid, and which cells each region covers.

`{id}_features` (N, D), `{id}_boxes` (N, 4), `{id}_grids` (49, D), `{id}_size` (1, 2) height and
width, `{id}_mask` (N, 49). Boxes are in pixels of the detector's input, whose size `_size` is; so
are boxes and size of the cache. The mask is the stream `alignment`; a cache without it gets it from
its boxes, by the program's rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from extract.cache import FeatureCache
from extract.errors import CacheError
from extract.formats.base import Entry, FormatError, box_rows, record_of, rows, square
from extract.formats.image_datasets import ImageDatasets, Read, write_datasets
from extract.records import ImageFeatures


class DlctHdf5:
    name = "dlct-hdf5"
    summary = "HDF5: {id}_features, _boxes, _grids, _size, _mask (DLCT)"
    needs = ("regions", "grids")
    known: tuple[str, ...] = ()
    single_file = True
    _layout = ImageDatasets("grids", ("features", "boxes", "size", "mask"))

    def recognises(self, source: Path) -> bool:
        return self._layout.recognised(source) and ImageDatasets("features").recognised(source)

    def entries(self, source: Path) -> Iterator[Entry]:
        return self._layout.entries(source, _record)

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        write_datasets(target, cache, lambda record: _parts(record, target), on_done)


def _record(name: str, read: Read, there: frozenset[str]) -> ImageFeatures:
    features = rows(read("features"), f"{name}_features")  # (N, D)
    found = record_of(features)
    grids = found.streams["grids"] = rows(read("grids"), f"{name}_grids")  # (cells, D)
    found.grid_shape["grids"] = square(len(grids), f"{name}_grids")
    if "boxes" in there:
        found.boxes["regions"] = box_rows(read("boxes"), f"{name}_boxes", len(features))
    if "size" in there:
        size = np.asarray(read("size")).reshape(-1)  # (2,)
        if size.shape != (2,) or not np.isfinite(size).all():
            raise FormatError(f"{name}_size is {size.tolist()}, wanted height and width")
        found.height, found.width = int(size[0]), int(size[1])
    if "mask" in there:
        mask = rows(read("mask"), f"{name}_mask", len(grids))  # (N, cells)
        if len(mask) != len(features):
            raise FormatError(f"{name}_mask has {len(mask)} rows for {len(features)} regions")
        found.streams["alignment"] = mask
    return found


def _parts(record: ImageFeatures, target: Path) -> dict[str, np.ndarray]:
    if "regions" not in record.boxes or not record.width or "grids" not in record.grid_shape:
        raise CacheError(
            f"{target}: image {record.image_id!r} has no boxes, grid shape or size, which DLCT"
            " needs; extract with a preset that gives regions and grids"
        )
    boxes, shape = record.boxes["regions"], record.grid_shape["grids"]
    mask = record.streams.get("alignment")
    if mask is None:
        mask = alignment(boxes / np.tile([record.width, record.height], 2), *shape)
    return {
        "features": record.streams["regions"].astype(np.float32),  # (N, D)
        "boxes": boxes,  # (N, 4)
        "grids": record.streams["grids"].astype(np.float32),  # (cells, D)
        "size": np.array([[record.height, record.width]], dtype=np.int64),  # (1, 2)
        "mask": mask.astype(np.float32),  # (N, cells)
    }


def alignment(boxes: np.ndarray, high: int, wide: int) -> np.ndarray:
    """Which cells boxes (N, 4) in 0..1 cover: (N, high wide), 1 or 0.

    A coordinate lies in the last cell that begins at or before it, at both ends of the box.
    """
    last = np.array([wide, high, wide, high]) - 1
    cells = np.clip(np.floor(boxes * (last + 1)), 0, last)[:, :, None]  # (N, 4, 1)
    x, y = np.arange(wide), np.arange(high)
    across = (x >= cells[:, 0]) & (x <= cells[:, 2])  # (N, wide)
    down = (y >= cells[:, 1]) & (y <= cells[:, 3])  # (N, high)
    return (down[:, :, None] & across[:, None, :]).reshape(len(boxes), -1).astype(np.float32)
