"""The feature cache as its readers see it.

A cache is a folder of shards with a journal (`extract.cache_folder`), or one merged HDF5 file.
Shard and merged file have the same tree (`extract.shard`).
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from extract.cache_folder import read_description, read_failures, read_journals
from extract.counts import counted
from extract.errors import CacheError
from extract.records import ImageFeatures, Stream
from extract.shard import SCHEMA, Descriptors, Shard

__all__ = [
    "SCHEMA",
    "SUFFIXES",
    "FeatureCache",
    "ImageFeatures",
    "Stream",
    "differences",
    "fingerprint_of",
    "flat",
    "image_id_of",
]

SUFFIXES = frozenset(  # by which a file's name says that it is an image
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .avif .heic .heif .tif .tiff .ppm .pgm .mpo".split()
)
_COCO = re.compile(r"(?:COCO_[A-Za-z]+\d{4}_)?(\d{12})", re.ASCII)  # of 2014, 2015 and of 2017


def image_id_of(name: str) -> str:
    """The image id of a file name: COCO's number without zeros in front, else the name.

    Of suffixes those of images are cut off and no others, so an id such as `v1.2` stays whole.
    Accented letters become composed ones (NFC): some file systems take names apart.
    """
    name = unicodedata.normalize("NFC", name)
    path = PurePosixPath(name.replace("\\", "/"))
    stem = path.stem if path.suffix.lower() in SUFFIXES else path.name
    coco = _COCO.fullmatch(stem)
    return str(int(coco.group(1))) if coco else stem


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
    """One line per key in which two fingerprints differ: `key: value of a / value of b`.

    The name of a weights file does not count where both state its sha256.
    """
    named = "weights.sha256" in a and "weights.sha256" in b
    return [
        f"{key}: {_short(a.get(key, 'absent'))} / {_short(b.get(key, 'absent'))}"
        for key in dict.fromkeys([*a, *b])
        if a.get(key, "absent") != b.get(key, "absent") and not (named and key == "weights.file")
    ]


def _short(value: Any) -> str:
    """The value as text; of long ones, such as lists of names, the beginning."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


class FeatureCache:
    """Reads a cache in either form: what was finished when it was opened.

    Cheap to pickle; files are opened when first read, so worker processes may be forked or
    spawned at any time. Images are read from the disk at each call, nothing is kept.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises CacheError naming the file, what was found and what to type."""
        self.path = Path(path)
        self._descriptors = Descriptors()
        self.meta: dict[str, Any]
        self.streams: dict[str, Stream]
        self.shards: list[Shard]
        if self.path.is_dir():
            listed = self._open_folder()
        elif self.path.is_file():
            self.shards = [Shard(self.path, self._descriptors)]
            tables = self.shards[0].tables
            self.meta = tables.meta
            self.streams = {name: table.stream for name, table in tables.streams.items()}
            listed = [tables.ids]
        else:
            raise CacheError(
                f"{self.path}: no such feature cache; type pipeline extract --help to make one"
            )
        self._matched: set[int] = set()  # shards whose streams were compared with the cache's
        self._places: dict[str, tuple[int, int]] = {}
        for number, ids in enumerate(listed):
            for place, image in enumerate(ids):
                if image in self._places:
                    first = self.shards[self._places[image][0]].path
                    raise CacheError(
                        f"image {image!r} is in {first} and again in {self.shards[number].path};"
                        f" type pipeline cache verify {self._typed} to see all such"
                    )
                self._places[image] = (number, place)
        self.ids = tuple(self._places)

    def _open_folder(self) -> list[Sequence[str]]:
        self.meta, self.streams = read_description(self.path)
        lines = read_journals(self.path)
        self.shards = [Shard(self.path / line.shard, self._descriptors) for line in lines]
        for shard, line in zip(self.shards, lines, strict=True):
            if not shard.path.is_file():
                raise CacheError(
                    f"{shard.path} is in the journal but not on disk; repeat the command that made"
                    f" the cache, pipeline extract ... --out {self._typed}: it makes the"
                    f" {counted(len(line.ids), 'image')} of that shard again and leaves the others"
                    " alone"
                )
        return [line.ids for line in lines]

    @property
    def _typed(self) -> str:
        """The path as it stands in a command."""
        return shlex.quote(str(self.path))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._places

    def place(self, image_id: str) -> tuple[Shard, int]:
        """The file that an image is in, and its number there. Raises CacheError when in none."""
        if image_id not in self._places:
            raise CacheError(
                f"{self.path}: no image {image_id!r} among its {len(self)}; extract it with"
                f" pipeline extract ... --out {self._typed}"
            )
        number, place = self._places[image_id]
        shard = self.shards[number]
        ids = shard.tables.ids
        if number not in self._matched:
            self._match(shard)
            self._matched.add(number)
        if place >= len(ids) or ids[place] != image_id:
            raise CacheError(
                f"{shard.path}: image {place} is not {image_id!r} as its journal says; type"
                f" pipeline cache verify {self._typed}"
            )
        return shard, place

    def _match(self, shard: Shard) -> None:
        found = {name: table.stream for name, table in shard.tables.streams.items()}
        if found != self.streams:
            raise CacheError(
                f"{shard.path}: has the streams {_shown(found)}, wanted {_shown(self.streams)} as"
                f" {self.path} says; type pipeline cache verify {self._typed}"
            )

    def read(self, image_id: str, streams: Sequence[str] | None = None) -> ImageFeatures:
        """One image, with all streams or those named. Raises CacheError for an unknown one."""
        names = list(self.streams) if streams is None else list(streams)
        for name in names:
            if name not in self.streams:
                raise CacheError(
                    f"{self.path}: no stream {name!r}, it has {', '.join(self.streams)}"
                )
        shard, place = self.place(image_id)
        return shard.read(place, names)

    def __iter__(self) -> Iterator[ImageFeatures]:
        return (self.read(image) for image in self.ids)

    def failures(self) -> dict[str, dict[str, str]]:
        """What could not be extracted and is not there: id -> file, reason, detail.

        A merged file knows none.
        """
        return read_failures(self.path, self._places) if self.path.is_dir() else {}

    def fingerprint(self) -> dict[str, Any]:
        """What decides the features; compare with `differences`."""
        return fingerprint_of(self.meta)

    def close(self) -> None:
        """Let go of all files; the next read opens them again."""
        self._descriptors.clear()


def _shown(streams: Mapping[str, Stream]) -> str:
    return ", ".join(f"{k} ({s.width}, {s.dtype})" for k, s in streams.items()) or "(none)"
