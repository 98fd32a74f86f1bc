"""One image's features as a record, and what makes a record fit to be kept."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from extract.errors import CacheError

DTYPES = ("float16", "float32")  # in which rows may be stored
LAYOUT = ("rows", "offsets", "boxes", "checksum", "grid_shape")  # names that no extra may have
SLACK = 1.0  # pixels that a box may stand out of its image


@dataclass(frozen=True)
class Stream:
    """One kind of rows in a cache: how wide they are and how they are stored."""

    width: int
    dtype: str = "float16"


@dataclass(kw_only=True)
class ImageFeatures:
    """All that a cache knows of one image; N rows of width D in each stream."""

    image_id: str
    width: int  # of the upright original in pixels; 0 x 0 where an imported file does not tell
    height: int
    streams: dict[str, np.ndarray]  # stream -> (N, D)
    boxes: dict[str, np.ndarray] = field(default_factory=dict)  # stream -> (N, 4) float32 pixels
    grid_shape: dict[str, tuple[int, int]] = field(default_factory=dict)  # (height, width)
    extras: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # stream -> (N,) each
    file: str = ""  # where the image was read from


def rows_checksum(rows: np.ndarray, boxes: np.ndarray | None) -> int:
    """CRC-32 over an image's rows and, where it has them, boxes in one stream, as stored."""
    value = zlib.crc32(np.ascontiguousarray(rows).data)
    return value if boxes is None else zlib.crc32(np.ascontiguousarray(boxes).data, value)


def facts_checksum(record: ImageFeatures) -> int:
    """CRC-32 over all else that a cache stores of an image: names, size, shapes and extras."""
    facts = [record.image_id, record.file, f"{record.width} {record.height}"]
    for stream, rows in sorted(record.streams.items()):
        facts.append(f"{stream} {len(rows)} {record.grid_shape.get(stream)}")
    value = zlib.crc32("\0".join(facts).encode("utf-8"))
    for _, extras in sorted(record.extras.items()):
        for name, values in sorted(extras.items()):
            value = zlib.crc32(np.ascontiguousarray(values).data, zlib.crc32(name.encode(), value))
    return value


def check_record(record: ImageFeatures, streams: Mapping[str, Stream]) -> None:
    """Raise CacheError, naming the image and the stream, when a record is not fit to be kept.

    Wanted: every stream with 1 or more rows of its width, finite in the type they are stored in;
    boxes finite, in order and inside the image, where its size is known; grid shapes and extras
    that match the rows.
    """
    for wrong in _problems(record, streams):
        source = f" ({record.file})" if record.file else ""
        raise CacheError(f"image {record.image_id!r}{source}: {wrong}")


def _problems(record: ImageFeatures, streams: Mapping[str, Stream]) -> Iterator[str]:
    """What is wrong; what comes after the first may follow from it."""
    for text in (record.image_id, record.file):
        if "\0" in text or text != text.encode("utf-8", "replace").decode("utf-8"):
            yield f"the name {text!r} is not valid UTF-8 text without NUL"
    if not record.image_id:
        yield "its id is empty"
    if min(record.width, record.height) < 1 and (record.width, record.height) != (0, 0):
        yield f"its size is {record.width} x {record.height} pixels, wanted 1 x 1 or more"
    for held in (record.streams, record.boxes, record.grid_shape, record.extras):
        for name in held:
            if name not in streams:
                yield f"stream {name!r} is not one of the cache's: {', '.join(streams)}"
    for name, stream in streams.items():
        yield from (f"stream {name!r}: {wrong}" for wrong in _stream_problems(record, name, stream))


def _stream_problems(record: ImageFeatures, name: str, stream: Stream) -> Iterator[str]:
    rows = record.streams.get(name)
    if rows is None or rows.ndim != 2 or rows.shape[1] != stream.width or not len(rows):
        found = "missing" if rows is None else f"of shape {rows.shape}"
        yield f"its rows are {found}, wanted (1 or more, {stream.width})"
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(rows.astype(stream.dtype, copy=False))  # (N, D)
    if not finite.all():
        row, column = (int(place[0]) for place in np.nonzero(~finite))
        value = rows[row, column]
        yield f"row {row}, column {column} is {value}, which is not finite in {stream.dtype}"
    boxes = record.boxes.get(name)
    if boxes is not None:
        if boxes.shape != (len(rows), 4):
            yield f"its boxes have the shape {boxes.shape}, wanted ({len(rows)}, 4)"
            return
        wrong = _wrong_boxes(boxes, record.width, record.height)  # (N,)
        if wrong.any():
            first = int(np.argmax(wrong))
            yield (
                f"box {first} is {boxes[first].tolist()}, wanted x1 <= x2, y1 <= y2 inside the"
                f" image of {record.width} x {record.height} pixels"
            )
    shape = record.grid_shape.get(name)
    if shape is not None and shape[0] * shape[1] != len(rows):
        yield f"its grid of {shape[0]} x {shape[1]} cells has {len(rows)} rows"
    for extra, values in record.extras.get(name, {}).items():
        if extra in LAYOUT or "/" in extra:
            yield f"no extra may be named {extra!r}"
        if values.shape != (len(rows),) or values.dtype.kind not in "iuf":
            yield f"{extra} are {values.dtype} {values.shape}, wanted numbers ({len(rows)},)"
        elif not np.isfinite(values).all():
            yield f"{extra} holds values that are not finite"


def _wrong_boxes(boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    """Which of the boxes (N, 4) are turned around, not finite or out of the image: (N,) bool."""
    low, high = boxes[:, :2], boxes[:, 2:]  # (N, 2) each
    known = (width, height) if width else (np.finfo(np.float32).max,) * 2
    limits = np.array(known, dtype=np.float32) + SLACK
    fine = (low >= -SLACK) & (low <= high) & (high <= limits)  # (N, 2), False on NaN
    return np.logical_not(fine.all(axis=1))
