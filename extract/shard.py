"""One HDF5 file of a feature cache, a shard or a merged file: its tree and its reader.

The tree (n images, N rows in all, D width of the stream):

    /                 attributes: schema, meta (JSON), checksum (CRC-32 of meta)
    image_id   (n,)   UTF-8 of a fixed length
    file       (n,)   UTF-8 of a fixed length, where the image was read from
    size       (n, 2) int32, width and height of the upright original in pixels
    checksum   (n,)   uint32, CRC-32 of the image's names, size, shapes and extras
    STREAM/rows       (N, D) float16 or float32
    STREAM/offsets    (n + 1,) int64, image i has the rows offsets[i]:offsets[i + 1]
    STREAM/boxes      (N, 4) float32, x1 y1 x2 y2 in pixels of the upright original
    STREAM/checksum   (n,) uint32, CRC-32 of the image's rows and boxes
    STREAM/grid_shape (n, 2) int32, height and width; only where the rows are a grid
    STREAM/objects, attributes, scores ...  (N,), where the extractor knows them

All that has a row per feature lies in one piece, so an image is read with one `pread` for each
such dataset, at an offset that is known once the small tables were read through HDF5.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from extract.errors import CacheError
from extract.records import LAYOUT, ImageFeatures, Stream, facts_checksum, rows_checksum

SCHEMA = 1
_OPEN_FILES = 64  # descriptors held at once; a cache of COCO has some 500 shards


@dataclass(frozen=True)
class Column:
    """A dataset of one value or vector per row, and where its bytes lie in the file."""

    dtype: np.dtype
    shape: tuple[int, ...]  # (N, ...)
    offset: int  # bytes


@dataclass(frozen=True)
class StreamTable:
    """What is known of a stream before its rows are read."""

    offsets: np.ndarray  # (n + 1,) int64
    checksum: np.ndarray  # (n,) uint32
    grid_shape: np.ndarray | None  # (n, 2) int32
    columns: dict[str, Column]  # rows, boxes and extras

    @property
    def counts(self) -> np.ndarray:
        """Rows of each image: (n,)."""
        return np.diff(self.offsets)

    @property
    def stream(self) -> Stream:
        rows = self.columns["rows"]
        return Stream(rows.shape[1], str(rows.dtype))


@dataclass(frozen=True)
class Tables:
    """The small datasets of a file."""

    meta: dict[str, Any]
    meta_checksum: bool | None  # whether it holds; None where the file has none
    ids: list[str]
    files: list[str]
    sizes: np.ndarray  # (n, 2) int32
    checksum: np.ndarray | None  # (n,) uint32
    streams: dict[str, StreamTable]


class Descriptor:
    """A file open for reading, closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class Descriptors:
    """The most recently read files, kept open; safe in threads and in forked processes."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, Descriptor] = OrderedDict()

    def of(self, path: Path) -> Descriptor:
        """The file's descriptor; hold on to it while reading."""
        found = self._open.pop(path, None) or Descriptor(path)
        self._open[path] = found
        while len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)
        return found

    def clear(self) -> None:
        """Close them all."""
        self._open.clear()

    def __reduce__(self) -> tuple[type[Descriptors], tuple[()]]:
        return Descriptors, ()


class Shard:
    """Reads one file. Nothing is opened before the first use; pickles without its handles."""

    def __init__(self, path: Path, descriptors: Descriptors | None = None) -> None:
        self.path = path
        self._descriptors = descriptors or Descriptors()
        self._tables: Tables | None = None

    @property
    def tables(self) -> Tables:
        """The small datasets. Raises CacheError when the file is no sound file of a cache."""
        if self._tables is None:
            self._tables = read_tables(self.path)
        return self._tables

    def read(self, place: int, streams: Sequence[str]) -> ImageFeatures:
        """The image at `place` with the streams asked for; arrays are the caller's own."""
        tables = self.tables
        found = ImageFeatures(
            image_id=tables.ids[place],
            width=int(tables.sizes[place, 0]),
            height=int(tables.sizes[place, 1]),
            streams={},
            file=tables.files[place],
        )
        for name in streams:
            table = tables.streams[name]
            start, stop = int(table.offsets[place]), int(table.offsets[place + 1])
            for key, column in table.columns.items():
                values = self._rows(column, start, stop)
                if key == "rows":
                    found.streams[name] = values  # (N, D)
                elif key == "boxes":
                    found.boxes[name] = values  # (N, 4)
                else:
                    found.extras.setdefault(name, {})[key] = values  # (N,)
            if table.grid_shape is not None:
                high, wide = table.grid_shape[place]
                found.grid_shape[name] = (int(high), int(wide))
        return found

    def changed(self, place: int, record: ImageFeatures) -> list[str]:
        """What of a record read whole no longer has the checksum it was written with."""
        tables = self.tables
        wrong = [
            f"the rows or boxes of stream {name!r}"
            for name, rows in record.streams.items()
            if rows_checksum(rows, record.boxes.get(name)) != tables.streams[name].checksum[place]
        ]
        if tables.checksum is not None and facts_checksum(record) != tables.checksum[place]:
            wrong.append("its names, size, shapes or extras")
        return wrong

    def _rows(self, column: Column, start: int, stop: int) -> np.ndarray:
        values = np.empty((stop - start, *column.shape[1:]), dtype=column.dtype)  # (rows, ...)
        if not values.size:
            return values
        place = column.offset + start * (values.nbytes // (stop - start))
        try:
            descriptor = self._descriptors.of(self.path)
            got = os.preadv(descriptor.number, [values.reshape(-1).view(np.uint8).data], place)
        except OSError as error:
            raise CacheError(f"{self.path}: cannot be read ({error.strerror})") from error
        if got != values.nbytes:
            raise CacheError(
                f"{self.path}: has {got} bytes at {place}, wanted {values.nbytes}; the file was cut"
                f" or changed while in use; type pipeline cache verify on it"
            )
        return values

    def close(self) -> None:
        """Let go of the file; the next read opens it again."""
        self._descriptors.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_descriptors": self._descriptors, "_tables": None}


def read_tables(path: Path) -> Tables:
    """The small datasets of a file. Raises CacheError naming what is wrong with it."""
    if not path.is_file():
        raise CacheError(f"{path}: no such file; type pipeline cache inspect on the whole cache")
    try:
        with h5py.File(path, "r", locking=False) as file:
            schema = file.attrs.get("schema")
            if schema != SCHEMA:
                found = "no schema" if schema is None else f"schema {schema}"
                raise CacheError(
                    f"{path}: an HDF5 file with {found}, wanted a feature cache of schema {SCHEMA};"
                    f" its keys begin {', '.join(list(file)[:5]) or '(none)'}; type pipeline"
                    " extract --help to make a cache"
                )
            tables = _tables(file)
    except CacheError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise CacheError(
            f"{path}: not a sound HDF5 file of a feature cache ({error}); it was cut, changed or"
            " is no HDF5; type pipeline cache verify on the cache, or make the file again with"
            " pipeline extract"
        ) from error
    return tables


def _tables(file: h5py.File) -> Tables:
    """Read and check; raises ValueError and whatever h5py raises on a broken file."""
    text = file.attrs["meta"]
    data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
    meta = json.loads(data)
    kept = file.attrs.get("checksum")
    sound = None if kept is None else bool(zlib.crc32(data) == kept)
    ids = [name.decode("utf-8") for name in file["image_id"][:]]
    files = [name.decode("utf-8") for name in file["file"][:]]
    sizes, count = file["size"][:], len(ids)
    checksum = file["checksum"][:] if "checksum" in file else None
    if not isinstance(meta, dict) or len(files) != count or sizes.shape != (count, 2):
        raise ValueError("image_id, file and size do not match")
    if checksum is not None and checksum.shape != (count,):
        raise ValueError("image_id and checksum do not match")
    streams = {
        name: _stream_table(group, ids)
        for name, group in file.items()
        if isinstance(group, h5py.Group)
    }
    return Tables(meta, sound, ids, files, sizes, checksum, streams)


def _stream_table(group: h5py.Group, ids: Sequence[str]) -> StreamTable:
    offsets, checksum = group["offsets"][:], group["checksum"][:]
    shapes = group["grid_shape"][:] if "grid_shape" in group else None
    columns = {
        name: Column(item.dtype, item.shape, _place(item))
        for name, item in group.items()
        if name in ("rows", "boxes") or name not in LAYOUT
    }
    rows, count = columns["rows"], len(ids)
    if len(rows.shape) != 2 or any(c.shape[0] != rows.shape[0] for c in columns.values()):
        raise ValueError(f"the datasets of stream {group.name} are not of one length")
    if checksum.shape != (count,) or not (shapes is None or shapes.shape == (count, 2)):
        raise ValueError(f"stream {group.name} is not of {count} images")
    if offsets.shape != (count + 1,) or offsets[0] != 0 or offsets[-1] != rows.shape[0]:
        raise ValueError(f"{group.name}/offsets does not span the {rows.shape[0]} rows")
    falling = np.flatnonzero(np.diff(offsets) < 0)
    if len(falling):
        raise ValueError(f"{group.name}/offsets falls at image {ids[falling[0]]!r}")
    return StreamTable(offsets, checksum, shapes, columns)


def _place(dataset: h5py.Dataset) -> int:
    """The byte at which a dataset lies in the file."""
    offset = dataset.id.get_offset()
    if offset is None and dataset.size:
        raise ValueError(f"dataset {dataset.name} does not lie in one piece")
    if dataset.dtype.kind not in "iuf":
        raise ValueError(f"dataset {dataset.name} holds {dataset.dtype}, wanted numbers")
    return offset or 0
