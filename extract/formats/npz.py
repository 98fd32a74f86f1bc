"""What formats of one `.npz` for each image share: reading without pickles, writing whole."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from extract.cache import FeatureCache
from extract.durable import write_bytes
from extract.errors import ExtractError
from extract.formats.base import FormatError, some_files
from extract.records import ImageFeatures
from extract.restricted_pickle import unpickle_arrays

_BROKEN = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError)


def read_npz(path: Path, pickled: str = "") -> dict[str, Any]:
    """The arrays of a file; the one called `pickled` may be a plain dictionary of arrays.

    Raises FormatError, also where it asks for any other class than NumPy's arrays.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            found = {key: file[key] for key in file.files if key != pickled}
            if pickled in file.files:
                with file.zip.open(f"{pickled}.npy") as member:
                    found[pickled] = _object(BytesIO(member.read()), path)
    except _BROKEN as error:
        raise FormatError(f"cannot be read as .npz ({type(error).__name__}: {error})") from error
    except ExtractError as error:
        raise FormatError(f"key {pickled}: {error}") from error
    return found


def _object(member: BytesIO, path: Path) -> Any:
    """The single object of a pickled array of shape (), by the restricted loader."""
    version = np.lib.format.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"a .npy of version {version}")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
    (header or np.lib.format.read_array_header_2_0)(member)
    array = unpickle_arrays(member, path)
    return array.item() if isinstance(array, np.ndarray) and array.shape == () else array


def part(arrays: Mapping[str, Any], key: str) -> Any:
    """One of the arrays. Raises FormatError naming the key."""
    if key not in arrays:
        raise FormatError(f"key {key} is missing, there are {', '.join(arrays) or 'none'}")
    return arrays[key]


def keys_of_some(folder: Path) -> Iterator[set[str]]:
    """The keys of a few files of a folder that can be read."""
    for path in some_files(folder, ".npz"):
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                yield set(file.files)
        except _BROKEN:
            continue


def write_whole(path: Path, write: Callable[[BytesIO], None]) -> None:
    """Make a file under a temporary name, then rename it."""
    data = BytesIO()
    write(data)
    write_bytes(path, data.getbuffer())


def write_npz(
    cache: FeatureCache,
    path_of: Callable[[ImageFeatures], Path],
    arrays: Callable[[ImageFeatures], Mapping[str, Any]],
    on_done: Callable[[int], None],
) -> None:
    """A compressed file for each image of a cache that has none yet."""
    for record in cache:
        path = path_of(record)
        if not path.exists():
            values = arrays(record)
            write_whole(path, lambda file, values=values: np.savez_compressed(file, **values))  # type: ignore[misc]
        on_done(1)
