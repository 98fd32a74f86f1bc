"""Writes one HDF5 file of a feature cache; `extract.shard` has the tree."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from extract.errors import CacheError
from extract.records import ImageFeatures, Stream, facts_checksum, rows_checksum
from extract.shard import SCHEMA


def write_shard(
    path: Path,
    meta: Mapping[str, Any],
    streams: Mapping[str, Stream],
    totals: Mapping[str, int],
    records: Iterable[ImageFeatures],
) -> None:
    """Write images, one or more, one after another to a file; memory for one at a time.

    `totals` gives the rows of each stream over all records. All must know the same of their
    rows as the first does (boxes, grid shape, extras); else CacheError. OSError when the disk is
    full. The bytes depend on the arguments only.

    h5py writes through a Python file because HDF5's own one crashes when a disk fills up. Strings
    have a fixed length because HDF5 may read for ever where one of variable length was damaged.
    """
    with path.open("w+b") as raw:
        with h5py.File(raw, "w", libver="latest") as file:
            text = json.dumps(dict(meta)).encode("ascii")
            file.attrs["schema"] = SCHEMA
            file.attrs["meta"] = np.bytes_(text)
            file.attrs["checksum"] = np.uint32(zlib.crc32(text))
            _write_records(file, streams, totals, records)


def _write_records(
    file: h5py.File,
    streams: Mapping[str, Stream],
    totals: Mapping[str, int],
    records: Iterable[ImageFeatures],
) -> None:
    heads: list[ImageFeatures] = []  # without their arrays
    columns: dict[str, dict[str, h5py.Dataset]] = {}
    counts: dict[str, list[int]] = {name: [0] for name in streams}
    sums: dict[str, list[int]] = {name: [] for name in streams}
    facts = []
    for given in records:
        record = _as_stored(given, streams)
        known = {name: _columns_of(record, name) for name in streams}
        if not heads:
            for name in streams:
                columns[name] = _create(file.create_group(name), known[name], totals[name])
        _same_columns(record, known, columns, heads)
        for name, arrays in known.items():
            start = counts[name][-1]
            stop = start + len(arrays["rows"])
            for key, values in arrays.items():
                columns[name][key][start:stop] = values
            counts[name].append(stop)
            sums[name].append(rows_checksum(arrays["rows"], arrays.get("boxes")))
        facts.append(facts_checksum(record))
        record.streams, record.boxes, record.extras = {}, {}, {}
        heads.append(record)
    _write_strings(file, "image_id", [head.image_id for head in heads])
    _write_strings(file, "file", [head.file for head in heads])
    sizes = np.array([(head.width, head.height) for head in heads], dtype=np.int32)  # (n, 2)
    file.create_dataset("size", data=sizes)
    file.create_dataset("checksum", data=np.array(facts, dtype=np.uint32))  # (n,)
    for name in streams:
        group = file[name]
        group.create_dataset("offsets", data=np.array(counts[name], dtype=np.int64))  # (n + 1,)
        group.create_dataset("checksum", data=np.array(sums[name], dtype=np.uint32))  # (n,)
        if name in heads[0].grid_shape:
            shapes = np.array([head.grid_shape[name] for head in heads], dtype=np.int32)  # (n, 2)
            group.create_dataset("grid_shape", data=shapes)


def _write_strings(file: h5py.File, name: str, texts: Sequence[str]) -> None:
    data = [text.encode("utf-8") for text in texts]
    length = max(1, *map(len, data))
    file.create_dataset(name, data=data, dtype=h5py.string_dtype("utf-8", length))  # (n,)


def _as_stored(record: ImageFeatures, streams: Mapping[str, Stream]) -> ImageFeatures:
    """The record in the types of the file."""
    kinds = {"i": np.int32, "u": np.int32, "f": np.float32}
    return ImageFeatures(
        image_id=record.image_id,
        width=record.width,
        height=record.height,
        streams={k: np.ascontiguousarray(record.streams[k], s.dtype) for k, s in streams.items()},
        boxes={k: np.ascontiguousarray(v, np.float32) for k, v in record.boxes.items()},
        grid_shape=dict(record.grid_shape),
        extras={
            stream: {k: np.ascontiguousarray(v, kinds[v.dtype.kind]) for k, v in extras.items()}
            for stream, extras in record.extras.items()
            if extras
        },
        file=record.file,
    )


def _columns_of(record: ImageFeatures, stream: str) -> dict[str, np.ndarray]:
    """All that has a row per feature."""
    boxes = {"boxes": record.boxes[stream]} if stream in record.boxes else {}
    return {"rows": record.streams[stream], **boxes, **record.extras.get(stream, {})}


def _create(group: h5py.Group, known: Mapping[str, np.ndarray], total: int) -> dict[str, Any]:
    return {
        key: group.create_dataset(key, shape=(total, *values.shape[1:]), dtype=values.dtype)
        for key, values in known.items()
    }


def _same_columns(
    record: ImageFeatures,
    known: Mapping[str, Mapping[str, np.ndarray]],
    columns: Mapping[str, Mapping[str, h5py.Dataset]],
    heads: Sequence[ImageFeatures],
) -> None:
    """Refuse a record that knows more or less of its rows than the first one."""
    first = heads[0] if heads else record
    for name, arrays in known.items():
        here = {f"{key} ({values.dtype})" for key, values in arrays.items()}
        there = {f"{key} ({values.dtype})" for key, values in columns[name].items()}
        here |= {"grid_shape"} if name in record.grid_shape else set()
        there |= {"grid_shape"} if name in first.grid_shape else set()
        if here != there:
            raise CacheError(
                f"image {record.image_id!r}: stream {name!r} has {', '.join(sorted(here))}, but"
                f" image {first.image_id!r} has {', '.join(sorted(there))}; wanted the same"
            )
