"""HDF5 with datasets `{id}_{part}` for each image, as M2 and its descendants keep them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    safe_name,
)
from extract.records import ImageFeatures

Read = Callable[[str], np.ndarray]  # a part's name -> its array
_KEY = re.compile(r"(.+)_(features|boxes|cls_prob|grids|size|mask)", re.DOTALL)


class ImageDatasets:
    """The parts that the images of such a file have."""

    def __init__(self, main: str, others: Iterable[str] = ()) -> None:
        """`main` is there for every image, each of the others for all images or for none."""
        self.main, self.parts = main, (main, *others)

    def recognised(self, source: Path, without: Iterable[str] = ()) -> bool:
        """Whether a file has such datasets, and none of the parts `without`."""
        without = tuple(without)

        def wanted(keys: Iterable[str]) -> bool:
            found = {match.group(2) for match in map(_KEY.fullmatch, keys) if match}
            return self.main in found and not found.intersection(without)

        return hdf5_keys(source, wanted)

    def entries(
        self, source: Path, record: Callable[[str, Read, frozenset[str]], ImageFeatures]
    ) -> Iterator[Entry]:
        """The images; `record` makes one of id, reader and the parts that the file has."""
        with open_hdf5(source) as file:
            names: dict[str, None] = {}
            found: set[str] = set()
            for key in file:
                match = _KEY.fullmatch(key)
                if match and match.group(2) in self.parts:
                    names[match.group(1)] = None
                    found.add(match.group(2))
            if self.main not in found:
                keys = ", ".join(key for key, _ in zip(file, range(5), strict=False))
                raise CacheError(
                    f"{source}: no key such as 37209_{self.main}; its keys begin {keys or '(none)'}"
                )
            there = frozenset(found)
            for name in names:

                def load(name: str = name) -> ImageFeatures:
                    return record(name, lambda part: _read(file, f"{name}_{part}"), there)

                yield Entry(name, f"{source.name}: {name}", load, by_id=True)


def _read(file: h5py.File, key: str) -> np.ndarray:
    try:
        item = file[key]
        if not isinstance(item, h5py.Dataset):
            raise FormatError(f"key {key} is a group, wanted a dataset")
        found: np.ndarray = item[()]
    except KeyError as error:
        raise FormatError(f"key {key} is missing") from error
    except (OSError, RuntimeError, TypeError) as error:
        raise FormatError(f"key {key} cannot be read ({error})") from error
    return found


def write_datasets(
    target: Path,
    cache: FeatureCache,
    parts: Callable[[ImageFeatures], Mapping[str, np.ndarray]],
    on_done: Callable[[int], None],
) -> None:
    """A file with the parts of every image of a cache."""
    with new_hdf5(target) as file:
        for record in cache:
            name = safe_name(record.image_id, target)
            for part, values in parts(record).items():
                file.create_dataset(f"{name}_{part}", data=values)
            on_done(1)
