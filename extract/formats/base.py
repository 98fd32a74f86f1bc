"""What a foreign format is to us: entries that load as records, and a writer of records.

Legend: N rows of an image, D width.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import h5py
import numpy as np

from extract.cache import SUFFIXES, FeatureCache, image_id_of
from extract.errors import CacheError, ExtractError
from extract.records import ImageFeatures


class FormatError(ExtractError):
    """One entry of a foreign file is not as its format says; the message names line or key."""


@dataclass(frozen=True)
class Entry:
    """One image of a foreign file, not read yet."""

    name: str  # of the image, as the file has it
    where: str  # file and line or key
    load: Callable[[], ImageFeatures]  # all but id and file; raises FormatError
    by_id: bool = False  # whether the name is an id rather than that of a file

    @property
    def image_id(self) -> str:
        """As of a file of that name; an id that ends as an image's name keeps its end."""
        whole = self.by_id and PurePosixPath(self.name).suffix.lower() in SUFFIXES
        return self.name if whole else image_id_of(self.name)


class Format(Protocol):
    """A foreign format: reading gives entries, writing takes a whole cache.

    `needs` are the streams, `known` the extras of the stream `regions`, that a cache must have to
    be written. A format of one file writes it at `target`; a format of folders writes one or more
    files for each image, and leaves images alone that are there whole.
    """

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def known(self) -> tuple[str, ...]: ...
    @property
    def single_file(self) -> bool: ...

    def recognises(self, source: Path) -> bool:
        """Whether the file or folder looks like this format; OSError when it cannot be read."""

    def entries(self, source: Path) -> Iterator[Entry]:
        """The images, one after another. Raises CacheError when nothing can be read."""

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        """Write all images of a cache. Raises CacheError, or OSError on a full disk."""


def record_of(features: np.ndarray, stream: str = "regions") -> ImageFeatures:
    """A record of rows (N, D) of an image of unknown name and size."""
    return ImageFeatures(image_id="", width=0, height=0, streams={stream: features})


def own_name(record: ImageFeatures, *, suffix: bool = True) -> str:
    """The name of the image's file where it gives the record's id, else the id itself.

    Without `suffix` that of an image is cut off a file's name; an id stays as it is, so that
    `a.jpg` and `a.png` are two.
    """
    name = PurePosixPath(record.file.replace("\\", "/"))
    if not name.name or image_id_of(name.name) != record.image_id:
        return record.image_id
    return name.stem if not suffix and name.suffix.lower() in SUFFIXES else name.name


def rows(values: Any, what: str, width: int | None = None) -> np.ndarray:
    """Numbers as (N, D) float16 or float32, N and D 1 or more. Raises FormatError."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiub":
        raise FormatError(f"{what} holds {found.dtype}, wanted numbers")
    if found.ndim != 2 or 0 in found.shape or width not in (None, found.shape[1]):
        wide = "D" if width is None else str(width)
        raise FormatError(f"{what} has the shape {found.shape}, wanted (N, {wide})")
    return found if found.dtype == np.float16 else found.astype(np.float32)


def box_rows(values: Any, what: str, count: int) -> np.ndarray:
    """Boxes as (N, 4) float32, N as given. Raises FormatError."""
    found = rows(values, what, 4).astype(np.float32)
    if len(found) != count:
        raise FormatError(f"{what} has {len(found)} boxes for {count} rows of features")
    return found


def column(values: Any, what: str, count: int, dtype: type[np.generic]) -> np.ndarray:
    """One value for each of the N rows: (N,). Raises FormatError."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiu" or found.shape != (count,):
        raise FormatError(f"{what} is {found.dtype} {found.shape}, wanted numbers ({count},)")
    return found.astype(dtype)


def square(count: int, what: str) -> tuple[int, int]:
    """Height and width of a square grid of so many cells. Raises FormatError."""
    side = math.isqrt(count)
    if side * side != count:
        raise FormatError(f"{what} has {count} rows, wanted those of a square grid such as 49")
    return side, side


def safe_name(name: str, target: Path) -> str:
    """A name that can be a file's or a key. Raises CacheError."""
    if "/" in name or name in ("", ".", ".."):
        raise CacheError(
            f"{target}: the image id {name!r} cannot be a name there; extract with --id name"
        )
    return name


def some_files(folder: Path, suffix: str, count: int = 3) -> list[Path]:
    """A few files of a folder, to look at; none where it is no folder."""
    found: list[Path] = []
    if folder.is_dir():
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix) and not entry.name.startswith("."):
                    found.append(Path(entry.path))
                    if len(found) == count:
                        break
    return found


def sorted_files(folder: Path, suffix: str) -> list[Path]:
    """The files of a folder with a suffix. Raises CacheError when there is none."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(suffix) and e.name[0] != ".")
    except OSError as error:
        raise CacheError(f"{folder}: cannot be listed ({error.strerror})") from error
    if not names:
        raise CacheError(f"{folder}: holds no {suffix} files")
    return [folder / name for name in names]


@contextmanager
def open_hdf5(source: Path) -> Iterator[h5py.File]:
    """A foreign HDF5 file. Raises CacheError when it is none."""
    try:
        file = h5py.File(source, "r", locking=False)
    except OSError as error:
        raise CacheError(f"{source}: cannot be read as HDF5 ({error})") from error
    with file:
        yield file


@contextmanager
def new_hdf5(target: Path) -> Iterator[h5py.File]:
    """A new HDF5 file; through Python, as HDF5 may crash on a full disk."""
    with target.open("w+b") as raw:
        with h5py.File(raw, "w", libver="latest") as file:
            yield file


def hdf5_keys(source: Path, wanted: Callable[[Sequence[str]], bool]) -> bool:
    """Whether a file is HDF5 and its first keys are as wanted."""
    if not source.is_file() or not h5py.is_hdf5(source):
        return False
    with open_hdf5(source) as file:
        return wanted([key for key, _ in zip(file, range(64), strict=False)])
