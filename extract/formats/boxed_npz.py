"""Folders of `.npz` with features, boxes and sizes, one file for each image.

bottom-up-attention.pytorch has `x bbox num_bbox image_h image_w info`, ROSITA `x boxes image_h
image_w`: `x` (N, D), boxes (N, 4) in pixels of the original. Classes and attributes are in `info`,
a pickled dictionary, which is read by the restricted loader; what we write has them as plain
arrays. ROSITA's captions (`text`) are no features and stay behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from extract.cache import FeatureCache
from extract.errors import CacheError
from extract.formats.base import (
    Entry,
    FormatError,
    box_rows,
    column,
    own_name,
    record_of,
    rows,
    safe_name,
    sorted_files,
)
from extract.formats.npz import keys_of_some, part, read_npz, write_npz
from extract.records import ImageFeatures

_EXTRAS: dict[str, tuple[str, type[np.generic]]] = {
    "objects_id": ("objects", np.int32),
    "objects_conf": ("scores", np.float32),
    "attrs_id": ("attributes", np.int32),
    "attrs_conf": ("attribute_scores", np.float32),
}


class BoxedNpz:
    """Files of features with boxes and sizes; `boxes` is the key of the boxes."""

    needs = ("regions",)
    known: tuple[str, ...] = ()
    single_file = False

    def __init__(self, name: str, boxes: str, summary: str, *, whole_names: bool) -> None:
        """With `whole_names` the file is called `{name of the image}.npz`, suffix and all."""
        self.name, self.boxes, self.summary, self.whole_names = name, boxes, summary, whole_names

    def recognises(self, source: Path) -> bool:
        return any({"x", self.boxes} <= keys for keys in keys_of_some(source))

    def entries(self, source: Path) -> Iterator[Entry]:
        for path in sorted_files(source, ".npz"):

            def load(path: Path = path) -> ImageFeatures:
                return self._record(read_npz(path, pickled="info"))

            yield Entry(path.name.removesuffix(".npz"), path.name, load)

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        def path_of(record: ImageFeatures) -> Path:
            name = own_name(record, suffix=self.whole_names)
            return target / f"{safe_name(name, target)}.npz"

        write_npz(cache, path_of, lambda record: self._arrays(record, target), on_done)

    def _record(self, arrays: dict[str, Any]) -> ImageFeatures:
        features = rows(part(arrays, "x"), "x")  # (N, D)
        found = record_of(features)
        found.boxes["regions"] = box_rows(part(arrays, self.boxes), self.boxes, len(features))
        if "num_bbox" in arrays and int(arrays["num_bbox"]) != len(features):
            raise FormatError(f"num_bbox is {arrays['num_bbox']}, but x has {len(features)} rows")
        found.width, found.height = (
            int(column(np.reshape(part(arrays, key), -1), key, 1, np.int64)[0])
            for key in ("image_w", "image_h")
        )
        info = arrays.get("info")
        known = {**info, **arrays} if isinstance(info, dict) else arrays
        extras = {
            extra: column(known[key], key, len(features), kind)
            for key, (extra, kind) in _EXTRAS.items()
            if key in known
        }
        if extras:
            found.extras["regions"] = extras
        return found

    def _arrays(self, record: ImageFeatures, target: Path) -> dict[str, Any]:
        if "regions" not in record.boxes or not record.width:
            raise CacheError(
                f"{target}: image {record.image_id!r} has no boxes or no known size, which"
                f" {self.name} needs; import the source with --sizes, or choose another --format"
            )
        features = record.streams["regions"].astype(np.float32)  # (N, D)
        extras = record.extras.get("regions", {})
        return {
            "x": features,
            self.boxes: record.boxes["regions"],
            **({"num_bbox": len(features)} if self.boxes == "bbox" else {}),
            "image_h": record.height,
            "image_w": record.width,
            **{key: extras[extra] for key, (extra, _) in _EXTRAS.items() if extra in extras},
        }
