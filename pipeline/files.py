"""Files written whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from extract import durable
from pipeline.errors import PipelineError, WrongUsage


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write a file through a temporary name in the same folder, which is made if need be.

    A reader sees the old file or the new one. Raises PipelineError when it cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_bytes(path, data)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written ({error.strerror or error})") from error


def write_text(path: Path | str, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def check_writable(folder: Path) -> None:
    """Raise PipelineError where the folder, there or to be made, cannot be written to."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise PipelineError(f"{folder}: cannot be written ({error.strerror or error})") from error


def refuse_inputs(path: Path, inputs: Iterable[Path], option: str) -> None:
    """Raise WrongUsage where what `option` is to write is a file that the command reads."""
    if path.resolve() in {read.resolve() for read in inputs}:
        raise WrongUsage(f"{option} {path} is read by this very command; give another name")
