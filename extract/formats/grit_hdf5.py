"""GRIT: dense datasets over all images, padded, with masks that are true where there is padding.

`image_ids` (n,), `gri_feat` (n, L, D), `gri_mask` (n, 1, 1, L), `reg_feat` (n, M, E), `reg_mask`
(n, 1, 1, M). Padding does not come into the cache. Shapes of the grids, boxes and image sizes are
not in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

from extract.cache import FeatureCache
from extract.errors import CacheError
from extract.formats.base import (
    Entry,
    FormatError,
    hdf5_keys,
    new_hdf5,
    open_hdf5,
    record_of,
    rows,
)
from extract.records import ImageFeatures

_STREAMS = {"gri": "grids", "reg": "regions"}


class GritHdf5:
    name = "grit-hdf5"
    summary = "HDF5: image_ids, gri_feat, gri_mask, reg_feat, reg_mask (GRIT)"
    needs = ("grids",)
    known: tuple[str, ...] = ()
    single_file = True

    def recognises(self, source: Path) -> bool:
        return hdf5_keys(source, lambda keys: "image_ids" in keys and "gri_feat" in keys)

    def entries(self, source: Path) -> Iterator[Entry]:
        with open_hdf5(source) as file:
            for key in ("image_ids", "gri_feat", "gri_mask"):
                if key not in file:
                    raise CacheError(f"{source}: key {key} is missing")
            ids = file["image_ids"][:].tolist()
            for place, given in enumerate(ids):
                name = given.decode("utf-8") if isinstance(given, bytes) else str(given)

                def load(place: int = place) -> ImageFeatures:
                    return _record(file, place)

                where = f"{source.name}: image_ids[{place}] ({name})"
                yield Entry(name, where, load, by_id=True)

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        numbers = all(_is_number(image) for image in cache.ids)
        with new_hdf5(target) as file:
            names = [int(i) if numbers else i.encode("utf-8") for i in cache.ids]
            file.create_dataset("image_ids", data=np.array(names))  # (n,)
            made = {
                part: _create(file, part, cache, stream)
                for part, stream in _STREAMS.items()
                if stream in cache.streams
            }
            for place, record in enumerate(cache):
                for part, (features, masks) in made.items():
                    values = record.streams[_STREAMS[part]]  # (N, D)
                    features[place, : len(values)] = values
                    masks[place, 0, 0, len(values) :] = True
                on_done(1)


def _is_number(image_id: str) -> bool:
    """Whether an int64 stands for the id and for no other, as it does not for `007`."""
    return image_id.isdecimal() and len(image_id) < 19 and str(int(image_id)) == image_id


def _record(file: h5py.File, place: int) -> ImageFeatures:
    streams = {}
    for part, stream in _STREAMS.items():
        if f"{part}_feat" not in file:
            continue
        try:
            features = rows(file[f"{part}_feat"][place], f"{part}_feat")  # (L, D)
            padded = np.asarray(file[f"{part}_mask"][place], dtype=bool).reshape(-1)  # (L,)
        except (KeyError, OSError, ValueError) as error:
            raise FormatError(f"{part}_feat or {part}_mask cannot be read ({error})") from error
        if len(padded) != len(features) or padded.all():
            raise FormatError(
                f"{part}_mask says that {padded.sum()} of {len(features)} rows are padding"
            )
        streams[stream] = features[~padded]  # (N, D)
    found = record_of(streams["grids"], "grids")
    found.streams = streams
    return found


def _create(
    file: h5py.File, part: str, cache: FeatureCache, stream: str
) -> tuple[h5py.Dataset, h5py.Dataset]:
    """Empty datasets (n, longest, D) and (n, 1, 1, longest)."""
    longest = max(int(s.tables.streams[stream].counts.max()) for s in cache.shards)
    count, width = len(cache), cache.streams[stream].width
    return (
        file.create_dataset(f"{part}_feat", (count, longest, width), dtype="float32"),
        file.create_dataset(f"{part}_mask", (count, 1, 1, longest), dtype=bool),
    )
