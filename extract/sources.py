"""Which images to extract: folders, files, lists and tables to (id, path) pairs."""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from extract.cache import image_id_of
from extract.errors import ExtractError

log = logging.getLogger(__name__)

SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .avif .heic .heif .tif .tiff .ppm .pgm .mpo".split()
)
_COLUMNS = ("image", "filename", "file_name", "path", "file")


@dataclass(frozen=True)
class Source:
    """An image to extract."""

    image_id: str
    path: Path


def find_sources(inputs: Sequence[Path], *, relative_ids: bool = False) -> list[Source]:
    """The images of folders (recursive), image files, lists (`.txt`) and tables (`.csv`, `.tsv`).

    Ids are by `image_id_of`, or with `relative_ids` the path within the folder. Raises
    ExtractError on an input that is not there and on two files with one id.
    """
    sources: dict[str, Source] = {}
    for given in inputs:
        for source in _sources_of(given, relative_ids):
            first = sources.setdefault(source.image_id, source)
            if first.path != source.path:
                raise ExtractError(
                    f"{first.path} and {source.path} have the same image id"
                    f" {source.image_id!r}; rename one, or use --id relative-path"
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
            relative = path.relative_to(given).as_posix()
            yield Source(relative if relative_ids else image_id_of(path.name), path)
        if skipped:
            log.info("%s: passed over %d files that are no images by name", given, skipped)
    elif not given.exists():
        raise ExtractError(f"{given}: not there; give a folder, an image, a list or a CSV")
    elif given.suffix.lower() in (".csv", ".tsv"):
        yield from _table(given, relative_ids)
    elif given.suffix.lower() in (".txt", ".lst", ".list"):
        for line in _text(given).splitlines():
            if line.strip():
                yield _listed(given, line.strip(), None, relative_ids)
    else:
        yield Source(given.as_posix() if relative_ids else image_id_of(given.name), given)


def _walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder in a stable order; a file or folder reached twice comes once."""
    seen_folders, seen_files = set(), set()
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        real = os.path.realpath(current)
        if real in seen_folders:
            continue
        seen_folders.add(real)
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            raise ExtractError(f"{current}: cannot be listed ({error.strerror})") from error
        waiting += [Path(e.path) for e in reversed(entries) if e.is_dir()]
        for entry in entries:
            if entry.is_dir():
                continue
            real = os.path.realpath(entry.path)
            if real not in seen_files:
                seen_files.add(real)
                yield Path(entry.path)


def _table(table: Path, relative_ids: bool) -> Iterator[Source]:
    delimiter = "\t" if table.suffix.lower() == ".tsv" else ","
    rows = csv.DictReader(_text(table).splitlines(), delimiter=delimiter)
    names = [name.strip().lower() for name in rows.fieldnames or []]
    rows.fieldnames = names
    column = next((name for name in _COLUMNS if name in names), None)
    if column is None:
        raise ExtractError(
            f"{table}: line 1: the columns are {', '.join(names) or 'none'}, wanted one of"
            f" {', '.join(_COLUMNS)}"
        )
    seen: set[str] = set()
    for row in rows:
        name = (row[column] or "").strip()
        if not name:
            raise ExtractError(f"{table}: line {rows.line_num}: no file name in {column}")
        if name not in seen:  # caption tables name an image once per caption
            seen.add(name)
            yield _listed(table, name, row.get("id"), relative_ids)


def _listed(holder: Path, name: str, given_id: str | None, relative_ids: bool) -> Source:
    path = Path(name) if Path(name).is_absolute() else holder.parent / name
    return Source(given_id or (name if relative_ids else image_id_of(name)), path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ExtractError(f"{path}: cannot be read as UTF-8 text ({error})") from error
