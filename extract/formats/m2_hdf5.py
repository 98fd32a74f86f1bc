"""Meshed-Memory Transformer: `{id}_features` (N, D), `{id}_boxes` (N, 4), `{id}_cls_prob` (N, C).

The class probabilities, where there are such, are the stream `class_probs`: background is column 0.
The file knows no image sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from extract.cache import FeatureCache
from extract.formats.base import Entry, FormatError, box_rows, record_of, rows
from extract.formats.image_datasets import ImageDatasets, Read, write_datasets
from extract.records import ImageFeatures


class M2Hdf5:
    name = "m2-hdf5"
    summary = "HDF5: {id}_features, {id}_boxes, {id}_cls_prob (Meshed-Memory Transformer)"
    needs = ("regions",)
    known: tuple[str, ...] = ()
    single_file = True
    _layout = ImageDatasets("features", ("boxes", "cls_prob"))

    def recognises(self, source: Path) -> bool:
        return self._layout.recognised(source, without=("grids", "mask"))

    def entries(self, source: Path) -> Iterator[Entry]:
        return self._layout.entries(source, _record)

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        write_datasets(target, cache, _parts, on_done)


def _record(name: str, read: Read, there: frozenset[str]) -> ImageFeatures:
    features = rows(read("features"), f"{name}_features")  # (N, D)
    found = record_of(features)
    if "boxes" in there:
        found.boxes["regions"] = box_rows(read("boxes"), f"{name}_boxes", len(features))
    if "cls_prob" in there:
        probs = rows(read("cls_prob"), f"{name}_cls_prob")  # (N, C)
        if len(probs) != len(features):
            raise FormatError(f"{name}_cls_prob has {len(probs)} rows for {len(features)}")
        found.streams["class_probs"] = probs
    return found


def _parts(record: ImageFeatures) -> Mapping[str, np.ndarray]:
    found = {"features": record.streams["regions"].astype(np.float32)}  # (N, D)
    if "regions" in record.boxes:
        found["boxes"] = record.boxes["regions"]  # (N, 4)
    if "class_probs" in record.streams:
        found["cls_prob"] = record.streams["class_probs"].astype(np.float32)  # (N, C)
    return found
