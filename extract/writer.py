"""The writer of feature caches: shards that appear whole, a journal that never lies."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from extract.cache import differences, flat
from extract.cache_folder import (
    JournalLine,
    failures_files,
    failures_path,
    journal_path,
    ranks_of,
    read_description,
    read_failures,
    read_journals,
    shard_name,
    shard_rank,
)
from extract.counts import counted
from extract.durable import append_line, cut_torn_line, replacing, write_text
from extract.errors import CacheError
from extract.lock import Lock
from extract.records import ImageFeatures, Stream, check_record
from extract.shard import SCHEMA
from extract.shard_writer import write_shard
from extract.share import Share

log = logging.getLogger(__name__)

ALL = Share()  # one process does all
SHARD_IMAGES = 256  # images of a shard: what a kill can cost at most

MAY_CHANGE = (
    "versions",
    "limits",
    "source",
)  # what of `meta` may be otherwise when a cache goes on


class CacheWriter:
    """Creates a cache folder, or goes on with one; use as a context manager.

    What `commit` returned from is durable: the shard was written under a temporary name, synced
    and renamed before its journal line was synced. A kill leaves at most a shard that no journal
    names, which the next writer removes. Several processes may write one cache, each with its
    share of the images; the next run, of however many processes, mends what any of them left.
    """

    def __init__(
        self,
        path: str | Path,
        meta: Mapping[str, Any],
        streams: Mapping[str, Stream],
        share: Share = ALL,
    ) -> None:
        self.path = Path(path)
        self.meta: dict[str, Any] = json.loads(json.dumps(dict(meta)))
        self.streams, self.share, self.rank = dict(streams), share, share.rank
        self.done: frozenset[str] = frozenset()  # ids of all ranks, as of entering, and our own
        self._lock = Lock(self.path, share)
        self._next = 0  # number of the next shard
        self._failed: dict[str, dict[str, str]] = {}

    def __enter__(self) -> CacheWriter:
        """Raises CacheError when the folder was made otherwise, is locked, or cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._describe()
            lines = self._mend()
        except OSError as error:
            self._lock.release()
            raise self._unwritable(self.path, error) from error
        except CacheError:
            self._lock.release()
            raise
        self.done = frozenset(image for line in lines for image in line.ids)
        return self

    def check(self, record: ImageFeatures) -> None:
        """Raise CacheError, naming image and stream, when `commit` would refuse this record."""
        check_record(record, self.streams)

    def commit(self, records: Sequence[ImageFeatures]) -> None:
        """Write one shard; durable on return.

        Raises CacheError on a full disk, on an id that is there already, and on records that
        `check` refuses; then none of these records is there.
        """
        if not records:
            return
        ids = [record.image_id for record in records]
        self._refuse_repeated(ids)
        for record in records:
            self.check(record)
        totals = {name: sum(len(r.streams[name]) for r in records) for name in self.streams}
        name = shard_name(self.rank, self._next)
        try:
            with replacing(self.path / name, self.rank) as temporary:
                write_shard(temporary, self.meta, self.streams, totals, records)
                with temporary.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            line = {"shard": name, "sha256": digest, "ids": ids}
            append_line(journal_path(self.path, self.rank), line)
        except OSError as error:
            raise self._unwritable(self.path / name, error) from error
        self.done |= frozenset(ids)
        self._next += 1
        for image in ids:
            self._failed.pop(image, None)

    def fail(self, image_id: str, file: str, reason: str, detail: str) -> None:
        """Note that an image could not be done; a later success of the same id supersedes it."""
        line = {"image_id": image_id, "file": file, "reason": reason, "detail": detail}
        path = failures_path(self.path, self.rank)
        try:
            append_line(path, line)
        except OSError as error:
            raise self._unwritable(path, error) from error
        self._failed[image_id] = line

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """List the failures that still stand; after an exception the files stay as they are."""
        path = failures_path(self.path, self.rank)
        try:
            if kind is None:
                lines = [json.dumps(f, ensure_ascii=False) + "\n" for f in self._failed.values()]
                if not path.exists() or path.read_text(encoding="utf-8") != "".join(lines):
                    write_text(path, "".join(lines), self.rank)
                for rank, other in failures_files(self.path).items():
                    if rank != self.rank and self.share.mends(rank):
                        other.unlink()  # what it listed is in our own now
        except OSError as problem:
            raise self._unwritable(path, problem) from problem
        finally:
            self._lock.release()

    def _describe(self) -> None:
        """Write `cache.json`, or compare with the one that is there."""
        path = self.path / "cache.json"
        streams = {name: asdict(stream) for name, stream in self.streams.items()}
        if not path.exists():
            strange = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
            if strange and not path.exists():  # another rank may have been first
                raise CacheError(
                    f"{self.path} is no feature cache but holds {', '.join(strange[:5])}; give an"
                    " empty or new folder as --out"
                )
            content = {"schema": SCHEMA, "streams": streams, "meta": self.meta}
            write_text(path, json.dumps(content, indent=1, ensure_ascii=False), self.rank)
            return
        meta, known = read_description(self.path)
        versions = [flat({k: m.get(k, {}) for k in MAY_CHANGE}) for m in (meta, self.meta)]
        old, new = (
            flat({k: v for k, v in m.items() if k not in MAY_CHANGE}) for m in (meta, self.meta)
        )
        old |= flat({"streams": {name: asdict(stream) for name, stream in known.items()}})
        new |= flat({"streams": streams})
        lines = differences(old, new)
        if lines:
            shown = "\n  ".join(lines)
            raise CacheError(
                f"{self.path} was made with other settings (there / asked for):\n  {shown}\n"
                "give another --out, or the preset, options and files of the first time"
            )
        for line in differences(*versions):
            log.warning("%s: goes on with another value (first / now): %s", self.path, line)

    def _mend(self) -> list[JournalLine]:
        """Remove what a kill left and what a user took away; returns the finished shards.

        Each process mends what is its own and what ranks left that this run does not have.
        """
        ranks = [rank for rank in ranks_of(self.path) if self.share.mends(rank)]
        for rank in ranks:
            cut_torn_line(journal_path(self.path, rank))
            cut_torn_line(failures_path(self.path, rank))
        lines = read_journals(self.path)
        numbers = [line.number for line in lines if line.rank == self.rank]
        self._next = 1 + max(numbers, default=-1)
        gone = {line.shard for line in lines if not (self.path / line.shard).is_file()}
        if gone:
            log.warning("%s: making again: %s", self.path, ", ".join(sorted(gone)))
        lines = [line for line in lines if line.shard not in gone]
        for rank in ranks:
            self._mend_rank(rank, [line for line in lines if line.rank == rank], gone)
        for path in self.path.glob(".*.tmp"):
            mark = path.name.split(".")[-2]
            if mark.isdecimal() and self.share.mends(int(mark)):
                path.unlink()
        done = {image for line in lines for image in line.ids}
        self._failed = read_failures(self.path, done, self.share.mends)
        return lines

    def _mend_rank(self, rank: int, lines: Sequence[JournalLine], gone: Collection[str]) -> None:
        """Leave in a rank's journal the shards that are there, and on disk those it names."""
        journal = journal_path(self.path, rank)
        if any(shard_rank(shard) == rank for shard in gone):
            kept = [json.dumps(asdict(line), ensure_ascii=False) + "\n" for line in lines]
            write_text(journal, "".join(kept), self.rank)
        named = {line.shard for line in lines}
        for path in self.path.glob(f"shard-{rank}-*.h5"):
            if path.name not in named:
                path.unlink()

    def _refuse_repeated(self, ids: Sequence[str]) -> None:
        seen: set[str] = set()
        for image in ids:
            if image in self.done or image in seen:
                where = "twice in one commit" if image in seen else f"already in {self.path}"
                raise CacheError(f"image {image!r} is {where}; give each image an id of its own")
            seen.add(image)

    def _unwritable(self, path: Path, error: OSError) -> CacheError:
        done = counted(len(self.done), "image")
        safe = f"; what was reported as done is safe: {done}" if self.done else ""
        return CacheError(
            f"{path}: cannot be written ({error.strerror or error}){safe}; make room or get leave"
            " to write there, then repeat the command"
        )
