"""The feature cache: what is in it, how it lies on disk, and its reader.

A cache is a folder of shards with a journal, or one merged HDF5 file. Shard and merged file have
the same tree (n images, N rows in all, D width of the stream):

    /                 attributes: schema, meta (JSON: preset, settings, weights, versions)
    image_id   (n,)   UTF-8
    file       (n,)   UTF-8, where the image was read from
    size       (n, 2) int32, width and height of the upright original in pixels
    STREAM/rows       (N, D) float16, contiguous
    STREAM/offsets    (n + 1,) int64, image i has the rows offsets[i]:offsets[i + 1]
    STREAM/boxes      (N, 4) float32, x1 y1 x2 y2 in pixels of the upright original
    STREAM/checksum   (n,) uint32, CRC-32 of the image's rows and boxes
    STREAM/grid_shape (n, 2) int32, height and width; only where the rows are a grid
    STREAM/objects, attributes, scores ...  (N,), where the extractor knows them

A folder holds `cache.json` (streams and meta), `shard-RANK-NUMBER.h5`, `journal-RANK.jsonl`
(one line per finished shard) and `failures.jsonl`. A shard that no journal names does not count.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np

from extract.errors import CacheError

SCHEMA = 1
_COCO = re.compile(r"COCO_[A-Za-z]+\d{4}_(\d{12})$")


def image_id_of(name: str) -> str:
    """The image id of a file name: COCO's number without zeros in front, else the stem."""
    base = PurePosixPath(name.replace("\\", "/")).name
    stem = base.rsplit(".", 1)[0] if "." in base.lstrip(".") else base
    coco = _COCO.match(stem)
    return str(int(coco.group(1))) if coco else stem


@dataclass(frozen=True)
class Stream:
    """One kind of rows in a cache: how wide they are and how they are stored."""

    width: int
    dtype: str = "float16"


@dataclass(kw_only=True)
class ImageFeatures:
    """All that a cache knows of one image; see the module's tree for shapes and units."""

    image_id: str
    width: int
    height: int
    streams: dict[str, np.ndarray]  # stream -> (N, D)
    boxes: dict[str, np.ndarray] = field(default_factory=dict)  # stream -> (N, 4) float32
    grid_shape: dict[str, tuple[int, int]] = field(default_factory=dict)  # (height, width)
    extras: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # stream -> (N,) each
    file: str = ""


def checksum(rows: np.ndarray, boxes: np.ndarray) -> int:
    """CRC-32 over an image's rows and boxes as stored."""
    return zlib.crc32(np.ascontiguousarray(boxes), zlib.crc32(np.ascontiguousarray(rows)))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `a.b` -> value."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return result


def fingerprint_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the features: preset, settings and weights, flat. Versions do not count."""
    return flat({key: meta[key] for key in ("preset", "settings", "weights") if key in meta})


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """One line per key in which two fingerprints differ: `key: value of a / value of b`."""
    return [
        f"{key}: {a.get(key, 'absent')} / {b.get(key, 'absent')}"
        for key in dict.fromkeys([*a, *b])
        if a.get(key, "absent") != b.get(key, "absent")
    ]


class Shard:
    """One HDF5 file of a cache, opened when first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: h5py.File | None = None
        self._maps: dict[str, np.ndarray] = {}
        self._pid = 0

    @property
    def file(self) -> h5py.File:
        """The open file, reopened in a forked process. Raises CacheError when it is no shard."""
        if self._file is None or self._pid != os.getpid():
            try:
                self._file = h5py.File(self.path, "r")
                schema = self._file.attrs.get("schema")
            except OSError as error:
                raise CacheError(
                    f"{self.path}: no readable HDF5 file ({error}), wanted a feature cache; type"
                    " pipeline extract --help to make one"
                ) from error
            if schema != SCHEMA:
                found = "no schema" if schema is None else f"schema {schema}"
                raise CacheError(
                    f"{self.path}: an HDF5 file with {found}, wanted a feature cache of schema"
                    f" {SCHEMA}; its keys begin {', '.join(list(self._file)[:5])}"
                )
            self._maps, self._pid = {}, os.getpid()
        return self._file

    @property
    def ids(self) -> list[str]:
        return [name.decode("utf-8") for name in self.file["image_id"][:]]

    @property
    def stream_names(self) -> list[str]:
        return [name for name, item in self.file.items() if isinstance(item, h5py.Group)]

    def array(self, name: str) -> np.ndarray:
        """A dataset as a memory map where it lies in one piece, else read whole."""
        if name not in self._maps or self._pid != os.getpid():
            dataset = self.file[name]
            offset = dataset.id.get_offset()
            if offset is None:
                self._maps[name] = dataset[:]
            else:
                self._maps[name] = np.memmap(
                    self.path, dtype=dataset.dtype, mode="r", offset=offset, shape=dataset.shape
                )
        return self._maps[name]

    def span(self, stream: str, place: int) -> slice:
        """The rows of the image at `place`."""
        offsets = self.array(f"{stream}/offsets")
        return slice(int(offsets[place]), int(offsets[place + 1]))

    def read(self, image_id: str, place: int, streams: Sequence[str]) -> ImageFeatures:
        """The image at `place` with the streams asked for."""
        width, height = (int(value) for value in self.array("size")[place])
        found = ImageFeatures(image_id=image_id, width=width, height=height, streams={})
        found.file = self.file["file"][place].decode("utf-8")
        for stream in streams:
            span = self.span(stream, place)
            found.streams[stream] = np.asarray(self.array(f"{stream}/rows")[span])
            found.boxes[stream] = np.asarray(self.array(f"{stream}/boxes")[span])
            group = self.file[stream]
            if "grid_shape" in group:
                high, wide = self.array(f"{stream}/grid_shape")[place]
                found.grid_shape[stream] = (int(high), int(wide))
            extras = [k for k in group if k not in _LAYOUT]
            if extras:
                found.extras[stream] = {k: self.array(f"{stream}/{k}")[span] for k in extras}
        return found

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None and self._pid == os.getpid():
            self._file.close()
        self._file, self._maps = None, {}

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_file": None, "_maps": {}, "_pid": 0}


_LAYOUT = ("rows", "offsets", "boxes", "checksum", "grid_shape")


class FeatureCache:
    """Reads a cache in either form; cheap to pickle, opens its files when first needed."""

    def __init__(self, path: str | Path) -> None:
        """Raises CacheError naming the file, what was found and what to type."""
        self.path = Path(path)
        if self.path.is_dir():
            described = read_description(self.path)
            self.meta: dict[str, Any] = described["meta"]
            self.streams = {k: Stream(**v) for k, v in described["streams"].items()}
            names = [line["shard"] for line in journal_lines(self.path)]
            self._shards = [Shard(self.path / name) for name in names]
            for shard in self._shards:
                if not shard.path.is_file():
                    raise CacheError(
                        f"{shard.path} is in the journal but not on disk; take its line out of the"
                        " journal and repeat the pipeline extract command to make it again"
                    )
        elif self.path.is_file():
            self._shards = [Shard(self.path)]
            file = self._shards[0].file
            self.meta = json.loads(file.attrs["meta"])
            self.streams = {
                name: Stream(int(file[name]["rows"].shape[1]), str(file[name]["rows"].dtype))
                for name in self._shards[0].stream_names
            }
        else:
            raise CacheError(f"{self.path}: no such feature cache; type pipeline extract --help")
        self._places: dict[str, tuple[int, int]] = {}
        for number, shard in enumerate(self._shards):
            for place, image in enumerate(shard.ids):
                if image in self._places:
                    first = self._shards[self._places[image][0]].path
                    raise CacheError(f"image {image!r} is in {first} and again in {shard.path}")
                self._places[image] = (number, place)
        self.ids = tuple(self._places)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._places

    @property
    def shards(self) -> list[Shard]:
        """The files behind the cache."""
        return self._shards

    def place(self, image_id: str) -> tuple[Shard, int]:
        """Where an image lies. Raises CacheError when it is not there."""
        if image_id not in self._places:
            raise CacheError(f"{self.path}: no image {image_id!r} among its {len(self)}")
        number, place = self._places[image_id]
        return self._shards[number], place

    def read(self, image_id: str, streams: Sequence[str] | None = None) -> ImageFeatures:
        """One image. Raises CacheError for an unknown id or stream."""
        shard, place = self.place(image_id)
        names = list(self.streams) if streams is None else list(streams)
        unknown = [name for name in names if name not in self.streams]
        if unknown:
            raise CacheError(
                f"{self.path}: no stream {unknown[0]!r}, it has {', '.join(self.streams)}"
            )
        return shard.read(image_id, place, names)

    def read_many(
        self, ids: Sequence[str], streams: Sequence[str] | None = None
    ) -> list[ImageFeatures]:
        """Several images, in the order asked for."""
        return [self.read(image, streams) for image in ids]

    def __iter__(self) -> Iterator[ImageFeatures]:
        return (self.read(image) for image in self.ids)

    def fingerprint(self) -> dict[str, Any]:
        """What decides the features; compare with `differences`."""
        return fingerprint_of(self.meta)

    def close(self) -> None:
        """Let go of all files."""
        for shard in self._shards:
            shard.close()


def read_description(folder: Path) -> dict[str, Any]:
    """`cache.json` of a folder. Raises CacheError when the folder is no cache."""
    path = folder / "cache.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CacheError(f"{folder}: no feature cache (no cache.json in it)") from None
    except (OSError, ValueError) as error:
        raise CacheError(f"{path}: cannot be read ({error})") from error
    if content.get("schema") != SCHEMA:
        raise CacheError(f"{path}: schema {content.get('schema')}, wanted {SCHEMA}")
    return content


def journal_lines(folder: Path) -> list[dict[str, Any]]:
    """The finished shards of all ranks: `{"shard", "sha256", "ids"}` each.

    A last line that a kill cut off is passed over; any other bad line raises CacheError.
    """
    lines = []
    for path in sorted(folder.glob("journal-*.jsonl")):
        raw = path.read_bytes().split(b"\n")
        for number, text in enumerate(raw[:-1], 1):  # what follows the last line feed was cut off
            try:
                lines.append(json.loads(text))
            except ValueError as error:
                raise CacheError(
                    f"{path}: line {number} is no JSON ({error}); restore the file, or delete the"
                    " folder and extract again"
                ) from error
    return lines
