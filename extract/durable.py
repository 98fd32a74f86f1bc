"""Small writes that are on the disk when they return, or did not happen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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


def temporary_name(path: Path, mark: object) -> Path:
    """Where a file is written before it is renamed; `mark` sets writers apart."""
    return path.with_name(f".{path.name}.{mark}.tmp")


def write_text(path: Path, text: str, mark: object) -> None:
    """Write a file whole under a temporary name, then rename it."""
    temporary = temporary_name(path, mark)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
