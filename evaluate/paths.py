"""Folders outside the installation, for what may be thrown away and what was fetched once, and
files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

_PROGRAM = "caption-pipeline"


def cache_dir(name: str) -> Path:
    """A writable folder for what can be made again, made if need be.

    `$XDG_CACHE_HOME/caption-pipeline/NAME`, by default under `~/.cache`; where that cannot be
    written to, a folder of this user's in the system's temporary folder.
    """
    wanted = _home("XDG_CACHE_HOME", ".cache") / name
    if _writable(wanted):
        return wanted
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    fallback = Path(tempfile.gettempdir()) / f"{_PROGRAM}-{user}" / name
    if _writable(fallback):
        return fallback
    return Path(tempfile.mkdtemp(prefix=f"{_PROGRAM}-{name}-"))


def data_dir(name: str) -> Path:
    """The folder of what `pipeline setup` fetched; it need not exist.

    `$XDG_DATA_HOME/caption-pipeline/NAME`, by default under `~/.local/share`.
    """
    return _home("XDG_DATA_HOME", ".local/share") / name


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The temporary name, in the same folder, of a file that is `path` once it is whole.

    At the end the file is synced and renamed, and its folder is synced; after an exception `path`
    is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.tmp")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # of the rename
    finally:
        os.close(folder)


def _home(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG rule: a relative path is invalid and ignored.
    base = Path(value) if os.path.isabs(value) else Path(os.path.expanduser("~")) / default
    return base / _PROGRAM


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Owner and mode matter in a shared temporary folder; only a real file shows the rest.
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
