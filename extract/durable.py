"""Writes that are on the disk when they return, or did not happen."""

from __future__ import annotations

import fcntl
import glob
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line of JSON; on OSError the file is as it was."""
    data = memoryview((json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8"))
    new = not path.exists()
    with path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
    if new:
        sync_folder(path.parent)


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line feed, as a kill may leave it."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)


def temporary_name(path: Path, mark: object = None) -> Path:
    """Where a file is written before it is renamed; `mark`, by default the process's number, sets
    writers apart."""
    return path.with_name(f".{path.name}.{os.getpid() if mark is None else mark}.tmp")


@contextmanager
def replacing(path: Path, mark: object = None) -> Iterator[Path]:
    """The temporary name, in the same folder, of a file that is `path` once it is whole.

    At the end the file is synced and renamed, and its folder is synced; after an exception `path`
    is as it was.
    """
    temporary = temporary_name(path, mark)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def replacing_large(path: Path) -> Iterator[Path]:
    """`replacing` of a file so large that none may stay of those that killed calls left.

    A writer holds a lock on its temporary file, so one without is nobody's any more. Where the
    file system has no locks nothing is removed.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError), left.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
    with temporary_name(path).open("wb") as held:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with replacing(path) as temporary:
            yield temporary


def write_bytes(path: Path, data: bytes | memoryview, mark: object = None) -> None:
    """Write a file whole under a temporary name, then rename it."""
    with replacing(path, mark) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str, mark: object = None) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"), mark)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
