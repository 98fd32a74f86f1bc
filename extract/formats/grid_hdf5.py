"""RSTNet and S2-Transformer: `{id}_grids` (N, D); DIFNet's own file has `{id}_features` instead.

The cells are those of a square grid, 7 x 7 as published. The file knows no image sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from extract.cache import FeatureCache
from extract.formats.base import Entry, record_of, rows, square
from extract.formats.image_datasets import ImageDatasets, Read, write_datasets
from extract.records import ImageFeatures


class GridHdf5:
    needs = ("grids",)
    known: tuple[str, ...] = ()
    single_file = True

    def __init__(self, name: str, part: str, summary: str) -> None:
        self.name, self.part, self.summary = name, part, summary
        self._layout = ImageDatasets(part)

    def recognises(self, source: Path) -> bool:
        """Only of grids can that be known: `{id}_features` are as well those of regions."""
        others = ("features", "boxes", "mask")
        return self.part == "grids" and self._layout.recognised(source, without=others)

    def entries(self, source: Path) -> Iterator[Entry]:
        return self._layout.entries(source, self._record)

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        write_datasets(target, cache, self._parts, on_done)

    def _record(self, name: str, read: Read, there: frozenset[str]) -> ImageFeatures:
        key = f"{name}_{self.part}"
        grids = rows(read(self.part), key)  # (N, D)
        found = record_of(grids, "grids")
        found.grid_shape["grids"] = square(len(grids), key)
        return found

    def _parts(self, record: ImageFeatures) -> dict[str, np.ndarray]:
        return {self.part: record.streams["grids"].astype(np.float32)}  # (N, D)
