"""The writer of feature caches: shards that appear whole, a journal that never lies."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import h5py
import numpy as np

from extract.cache import (
    SCHEMA,
    ImageFeatures,
    Stream,
    checksum,
    differences,
    fingerprint_of,
    flat,
    journal_lines,
    read_description,
)
from extract.errors import CacheError


class CacheWriter:
    """Creates a cache folder, or goes on with one; use as a context manager.

    What `commit` returned from is durable: the shard was written under a temporary name, synced
    and renamed before its journal line was synced. A kill leaves at most a shard that no journal
    names, which the next writer removes.
    """

    def __init__(
        self,
        path: str | Path,
        meta: Mapping[str, Any],
        streams: Mapping[str, Stream],
        rank: int = 0,
    ) -> None:
        """Raises CacheError when the folder was made otherwise, is locked, or cannot be written."""
        self.path = Path(path)
        self.meta, self.streams, self.rank = dict(meta), dict(streams), rank
        self.journal = self.path / f"journal-{rank}.jsonl"
        self.failures = self.path / "failures.jsonl"
        self._lock: IO[str] | None = None

    def __enter__(self) -> CacheWriter:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._describe()
            self._mend()
        except OSError as error:
            self._release()
            raise CacheError(f"{self.path}: cannot be written ({error.strerror})") from error
        except CacheError:
            self._release()
            raise
        lines = journal_lines(self.path)
        self.done = frozenset(image for line in lines for image in line["ids"])
        own = [line for line in lines if line["shard"].startswith(f"shard-{self.rank}-")]
        self._next = 1 + max((int(line["shard"][:-3].split("-")[2]) for line in own), default=-1)
        self._failed: dict[str, dict[str, str]] = {}
        return self

    def commit(self, records: Sequence[ImageFeatures]) -> None:
        """Write one shard; durable on return.

        Raises CacheError on a full disk, on an id that is there already, and on rows that are not
        finite in the stored type.
        """
        if not records:
            return
        self._check(records)
        name = f"shard-{self.rank}-{self._next:05d}.h5"
        temporary = self.path / f".{name}.tmp"
        try:
            write_shard(temporary, records, self.meta, self.streams)
            digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
            os.replace(temporary, self.path / name)
            _sync(self.path)
            ids = [record.image_id for record in records]
            _append(self.journal, {"shard": name, "sha256": digest, "ids": ids})
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise CacheError(
                f"{self.path / name}: cannot be written ({error.strerror or error}); what was"
                " reported as done is safe: make room and repeat the command"
            ) from error
        self.done |= set(ids)
        self._next += 1
        for image in ids:
            self._failed.pop(image, None)

    def fail(self, image_id: str, file: str, reason: str, detail: str) -> None:
        """Note that an image could not be done; a later success of the same id supersedes it."""
        line = {"image_id": image_id, "file": file, "reason": reason, "detail": detail}
        self._failed[image_id] = line
        try:
            _append(self.failures, line)
        except OSError as error:
            raise CacheError(f"{self.failures}: cannot be written ({error.strerror})") from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                text = "".join(
                    json.dumps(f, ensure_ascii=False) + "\n" for f in self._failed.values()
                )
                _write(self.failures, text)
        except OSError as problem:
            raise CacheError(
                f"{self.failures}: cannot be written ({problem.strerror})"
            ) from problem
        finally:
            self._release()

    def _take_lock(self) -> None:
        self._lock = (self.path / f".lock-{self.rank}").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            raise CacheError(
                f"{self.path}: another process is writing there (process {holder}); wait for it,"
                " or give another --out"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _describe(self) -> None:
        """Write `cache.json`, or compare with the one that is there."""
        path = self.path / "cache.json"
        streams = {name: asdict(stream) for name, stream in self.streams.items()}
        if not path.exists():
            strange = [p.name for p in self.path.iterdir() if not p.name.startswith(".")]
            if strange:
                raise CacheError(
                    f"{self.path} is no feature cache but holds {', '.join(sorted(strange)[:5])};"
                    " give an empty or new folder as --out"
                )
            content = {"schema": SCHEMA, "streams": streams, "meta": self.meta}
            _write(path, json.dumps(content, indent=1, ensure_ascii=False))
            return
        found = read_description(self.path)
        old = {
            **fingerprint_of(found["meta"]),
            **_inputs(found["meta"]),
            "streams": found["streams"],
        }
        asked = json.loads(json.dumps(self.meta))
        new = {**fingerprint_of(asked), **_inputs(asked), "streams": streams}
        lines = differences(old, new)
        if lines:
            shown = "\n  ".join(lines)
            raise CacheError(
                f"{self.path} was made with other settings (there / asked for):\n  {shown}\n"
                "give another --out, or the settings of the first time"
            )
        self.meta = found["meta"]

    def _mend(self) -> None:
        """Remove what a kill left: unnamed shards and the cut-off end of the journal."""
        if self.journal.exists():
            data = self.journal.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(self.journal, whole)
        named = {line["shard"] for line in journal_lines(self.path)}
        for path in self.path.glob(f"shard-{self.rank}-*.h5"):
            if path.name not in named:
                path.unlink()
        for path in self.path.glob(f".shard-{self.rank}-*.tmp"):
            path.unlink()

    def _check(self, records: Sequence[ImageFeatures]) -> None:
        seen = set(self.done)
        for record in records:
            if record.image_id in seen:
                raise CacheError(f"{self.path}: image {record.image_id!r} is already there")
            seen.add(record.image_id)
            for name, stream in self.streams.items():
                rows = record.streams.get(name)
                if rows is None or rows.ndim != 2 or rows.shape[1] != stream.width or not len(rows):
                    shape = None if rows is None else rows.shape
                    raise CacheError(
                        f"image {record.image_id!r}: stream {name!r} is {shape}, wanted"
                        f" (1 or more, {stream.width})"
                    )
                with np.errstate(over="ignore"):
                    stored = rows.astype(stream.dtype)
                if not np.isfinite(stored).all():
                    raise CacheError(
                        f"image {record.image_id!r}: stream {name!r} has values that are not"
                        f" finite in {stream.dtype}"
                    )


def _inputs(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Given boxes: they may differ between caches of one fingerprint, not within a cache."""
    return flat({"boxes": meta.get("boxes", {})})


def write_shard(
    path: Path,
    records: Sequence[ImageFeatures],
    meta: Mapping[str, Any],
    streams: Mapping[str, Stream],
) -> None:
    """One synced HDF5 file of these images, in the tree of `extract.cache`."""
    text = h5py.string_dtype()
    with path.open("w+b") as raw:
        with h5py.File(raw, "w", libver="latest") as file:
            file.attrs["schema"] = SCHEMA
            file.attrs["meta"] = json.dumps(dict(meta), ensure_ascii=False)
            file.create_dataset("image_id", data=[r.image_id for r in records], dtype=text)
            file.create_dataset("file", data=[r.file for r in records], dtype=text)
            sizes = np.array([(r.width, r.height) for r in records], dtype=np.int32)  # (n, 2)
            file.create_dataset("size", data=sizes)
            for name, stream in streams.items():
                _write_stream(file.create_group(name), name, stream, records)
        raw.flush()
        os.fsync(raw.fileno())


def _write_stream(
    group: h5py.Group, name: str, stream: Stream, records: Sequence[ImageFeatures]
) -> None:
    rows = [np.ascontiguousarray(r.streams[name], dtype=stream.dtype) for r in records]
    boxes = [
        np.ascontiguousarray(r.boxes.get(name, np.zeros((len(part), 4))), dtype=np.float32)
        for r, part in zip(records, rows, strict=True)
    ]
    counts = [len(part) for part in rows]
    group.create_dataset("rows", data=np.concatenate(rows))  # (N, D)
    group.create_dataset("boxes", data=np.concatenate(boxes))  # (N, 4)
    group.create_dataset("offsets", data=np.cumsum([0, *counts], dtype=np.int64))  # (n + 1,)
    sums = [checksum(part, box) for part, box in zip(rows, boxes, strict=True)]
    group.create_dataset("checksum", data=np.array(sums, dtype=np.uint32))  # (n,)
    if all(name in r.grid_shape for r in records):
        shapes = np.array([r.grid_shape[name] for r in records], dtype=np.int32)  # (n, 2)
        group.create_dataset("grid_shape", data=shapes)
    for extra in records[0].extras.get(name, {}):
        values = np.concatenate([r.extras[name][extra] for r in records])  # (N,)
        group.create_dataset(extra, data=values)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
