"""Which images to extract: folders, files, lists and tables to (id, path) pairs."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from extract.cache import SUFFIXES, image_id_of
from extract.counts import counted
from extract.errors import ExtractError

log = logging.getLogger(__name__)

_SHOWN = 10  # pairs of one id named in an error
_IDS = ("id", "image_id")
_COLUMNS = ("image", "filename", "file_name", "path", "file")


@dataclass(frozen=True)
class Source:
    """An image to extract."""

    image_id: str
    path: Path

    @property
    def file(self) -> str:
        """The whole path as text to store: bytes that are no UTF-8 are written as \\xNN."""
        return _storable(os.path.abspath(self.path))


def find_sources(inputs: Sequence[Path], *, relative_ids: bool = False) -> list[Source]:
    """The images of folders (recursive), image files, lists (`.txt`) and tables (`.csv`, `.tsv`).

    Ids are by `image_id_of`, or with `relative_ids` the path within the folder. Raises
    ExtractError on an input that is not there and on two files with one id.
    """
    sources: dict[str, Source] = {}
    twice: list[str] = []
    for given in inputs:
        for source in _sources_of(given, relative_ids):
            first = sources.setdefault(source.image_id, source)
            if os.path.realpath(first.path) != os.path.realpath(source.path):
                same = f"{first.path} and {source.path} have the same image id"
                twice.append(f"{same} {source.image_id!r}")
    if twice:
        more = f" (and {len(twice) - _SHOWN} more)" if len(twice) > _SHOWN else ""
        raise ExtractError(
            f"{'; '.join(twice[:_SHOWN])}{more}; rename one of each, or use --id relative-path,"
            " for features whose ids no caption file needs to know"
        )
    if not sources:
        raise ExtractError(f"no image in {', '.join(map(str, inputs))}")
    return list(sources.values())


def _sources_of(given: Path, relative_ids: bool) -> Iterator[Source]:
    if given.is_dir():
        skipped = 0
        for path in _walk(given):
            if path.suffix.lower() not in SUFFIXES:
                skipped += 1
                continue
            yield _source(path, path.relative_to(given).as_posix(), relative_ids)
        if skipped:
            log.info("%s: passed over %s not named as images are", given, counted(skipped, "file"))
    elif not given.exists():
        raise ExtractError(f"{given}: not there; give a folder, an image, a list or a CSV")
    elif given.suffix.lower() in (".csv", ".tsv"):
        yield from _table(given, relative_ids)
    elif given.suffix.lower() in (".txt", ".lst", ".list"):
        for line in _text(given).split("\n"):
            if line.strip():
                yield _listed(given, line.removesuffix("\r"), None, relative_ids)
    elif given.suffix.lower() in (".json", ".jsonl"):
        raise ExtractError(
            f"{given}: is JSON, wanted images: a folder, an image, a list (.txt) or a table (.csv,"
            " .tsv); captions are for pipeline train --captions"
        )
    else:
        yield _source(given, given.as_posix(), relative_ids)


def _walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder, sorted; what is reached twice comes once.

    Links are followed after all that is really there, so a file keeps its own name beside links.
    """
    found: dict[str, Path] = {}  # real path of a file -> where it was reached first
    seen: set[str] = set()
    waiting, links = [folder], list[Path]()
    while waiting or links:
        current = waiting.pop() if waiting else links.pop(0)
        real = os.path.realpath(current)
        if not current.is_dir():
            found.setdefault(real, current)
        elif real not in seen:
            seen.add(real)
            for entry in _entries(current):
                (links if entry.is_symlink() else waiting).append(Path(entry.path))
    yield from sorted(found.values())


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise ExtractError(f"{folder}: cannot be listed ({error.strerror})") from error


def _table(table: Path, relative_ids: bool) -> Iterator[Source]:
    delimiter = "\t" if table.suffix.lower() == ".tsv" else ","
    rows = csv.DictReader(io.StringIO(_text(table), newline=""), delimiter=delimiter)
    names = [name.strip().lower() for name in rows.fieldnames or []]
    rows.fieldnames = names
    column = next((name for name in _COLUMNS if name in names), None)
    if column is None:
        raise ExtractError(
            f"{table}: line 1: the columns are {', '.join(names) or 'none'}, wanted one of"
            f" {', '.join(_COLUMNS)}"
        )
    id_column = next((name for name in _IDS if name in names), None)
    seen: set[tuple[str, str | None]] = set()
    for row in rows:
        name = (row[column] or "").strip()
        given_id = (row[id_column] or "").strip() if id_column else None
        if not name or given_id == "":
            empty = id_column if name else column
            raise ExtractError(f"{table}: line {rows.line_num}: nothing in column {empty}")
        if (name, given_id) not in seen:  # caption tables name an image once per caption
            seen.add((name, given_id))
            yield _listed(table, name, given_id, relative_ids)


def _listed(holder: Path, name: str, given_id: str | None, relative_ids: bool) -> Source:
    path = Path(name) if Path(name).is_absolute() else holder.parent / name
    return Source(given_id, path) if given_id else _source(path, name, relative_ids)


def _source(path: Path, name: str, relative_ids: bool) -> Source:
    return Source(_storable(name if relative_ids else image_id_of(name)), path)


def _storable(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ExtractError(f"{path}: cannot be read as UTF-8 text ({error})") from error
