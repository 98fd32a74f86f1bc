"""Is every image of a cache there once, whole, and as it was written?"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from extract.cache import differences, fingerprint_of, image_id_of
from extract.cache_folder import JournalLine, read_description, read_failures, read_journals
from extract.counts import counted
from extract.errors import CacheError
from extract.records import check_record
from extract.shard import Shard

_HDF5 = b"\x89HDF\r\n\x1a\n"  # how every HDF5 file begins


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, with which image, and what."""

    file: Path
    image_id: str | None
    what: str

    def __str__(self) -> str:
        image = "" if self.image_id is None else f"image {self.image_id!r}: "
        return f"{self.file}: {image}{self.what}"


@dataclass
class Report:
    """What `verify` found; sound when there is no problem and nothing is missing."""

    path: Path
    images: int = 0  # looked at
    problems: list[Problem] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # wanted, but not there: name -> why

    @property
    def sound(self) -> bool:
        return not self.problems and not self.missing

    def advice(self) -> list[str]:
        """What to type, one line each."""
        lines = []
        path = shlex.quote(str(self.path))
        files = sorted({str(problem.file) for problem in self.problems})
        if files and self.path.is_dir():
            lines.append(
                f"remove the bad shards and repeat the pipeline extract command with --out"
                f" {path}; it makes only their images again: rm {shlex.join(files)}"
            )
        elif files:
            lines.append(f"make {self.path} again: pipeline cache merge CACHE --out NEW.h5")
        if self.missing:
            lines.append(f"extract what is missing: pipeline extract PHOTOS ... --out {path}")
        return lines


def image_count(path: Path) -> int:
    """How many images `verify` will look at. Raises CacheError as `verify` does."""
    return sum(len(line.ids) if line else _readable(shard) for shard, line in _files(path))


def verify(
    path: Path,
    wanted: Mapping[str, str | None] | None = None,
    *,
    on_done: Callable[[int], None] = lambda count: None,
) -> Report:
    """Read all of a cache and report what is wrong with it.

    For each image: checksums, values that are not finite, boxes outside the image, rows that do
    not match the offsets; duplicates; for each file its sha256 in the journal and its settings.
    `wanted` are ids or file names that must be there, each with another id that does as well, if
    any. Raises CacheError when there is no cache, or one whose description or journal cannot be
    read.
    """
    report = Report(path)
    described = fingerprint_of(read_description(path)[0]) if path.is_dir() else None
    seen: dict[str, Path] = {}
    for shard, line in _files(path):
        before = len(report.problems)
        try:
            _verify_shard(shard, report, seen, on_done)
        except CacheError as error:
            report.problems.append(Problem(shard.path, None, _lost(error, line)))
            continue
        report.problems += _verify_file(shard, line, described, len(report.problems) == before)
    if wanted is not None:
        failures = read_failures(path, seen) if path.is_dir() else {}
        for name, other in wanted.items():
            known = (name, image_id_of(name), other)
            if not any(image in seen for image in known):
                failed = [failures[image] for image in known if image in failures]
                report.missing[name] = _why(failed[0] if failed else None)
    return report


def _files(path: Path) -> Iterator[tuple[Shard, JournalLine | None]]:
    if path.is_dir():
        read_description(path)
        for line in read_journals(path):
            yield Shard(path / line.shard), line
    elif path.is_file():
        if not _claims_cache(path):
            raise CacheError(
                f"{path}: no feature cache (not an HDF5 file with our schema); give a folder that"
                " pipeline extract made, or one file of it"
            )
        yield Shard(path), None
    else:
        raise CacheError(f"{path}: no such feature cache; type pipeline extract --help to make one")


def _claims_cache(path: Path) -> bool:
    """Whether a file says that it is a cache; a damaged one may say nothing any more."""
    try:
        with path.open("rb") as opened:
            head = opened.read(len(_HDF5))
        if head[:4] != _HDF5[:4] and head[4:] != _HDF5[4:]:
            return False
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        with h5py.File(path, "r", locking=False) as file:
            return "schema" in file.attrs or "image_id" in file
    except (OSError, RuntimeError, KeyError):
        return True  # HDF5 that is cut or changed: to be reported as such


def _readable(shard: Shard) -> int:
    try:
        return len(shard.tables.ids)
    except CacheError:
        return 0


def _verify_shard(
    shard: Shard, report: Report, seen: dict[str, Path], on_done: Callable[[int], None]
) -> None:
    """Look at each image of a file. Raises CacheError when the file cannot be read on."""
    tables = shard.tables
    streams = {name: table.stream for name, table in tables.streams.items()}
    for place, image in enumerate(tables.ids):
        if image in seen:
            report.problems.append(
                Problem(shard.path, image, f"is a duplicate, {seen[image]} has it too")
            )
        seen.setdefault(image, shard.path)
        record = shard.read(place, list(streams))
        wrong = shard.changed(place, record)
        if wrong:
            what = f"{' and '.join(wrong)} changed since they were written (checksum)"
            report.problems.append(Problem(shard.path, image, what))
        else:
            try:
                check_record(record, streams)
            except CacheError as error:
                report.problems.append(Problem(shard.path, None, str(error)))
        report.images += 1
        on_done(1)


def _verify_file(
    shard: Shard, line: JournalLine | None, described: dict[str, Any] | None, images_sound: bool
) -> Iterator[Problem]:
    tables = shard.tables
    if line is None:
        if tables.checksum is None or tables.meta_checksum is None:
            yield Problem(shard.path, None, "has no checksums of its names, sizes and settings")
        if tables.meta_checksum is False:
            yield Problem(shard.path, None, "its settings (meta) changed since they were written")
        return
    if list(line.ids) != tables.ids:
        yield Problem(shard.path, None, "its images are not those that its journal line names")
    lines = differences(described or {}, fingerprint_of(tables.meta))
    if lines:
        what = f"was made otherwise than cache.json says (there / here): {'; '.join(lines)}"
        yield Problem(shard.path, None, what)
    with shard.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != line.sha256 and images_sound:
        yield Problem(
            shard.path, None, "its bytes changed since they were written (sha256 in the journal)"
        )


def _lost(error: CacheError, line: JournalLine | None) -> str:
    """Why a file cannot be read, and the images that go with it."""
    text = str(error)
    if line is None:
        return text
    shown = ", ".join(line.ids[:20]) + (", ..." if len(line.ids) > 20 else "")
    return f"cannot be read, with it {counted(len(line.ids), 'image')}: {shown} ({text})"


def _why(failure: dict[str, str] | None) -> str:
    if failure is None:
        return "not in the cache"
    return f"failed in extraction: {failure.get('reason')}: {failure.get('detail')}"
