"""A lock on a folder that one process holds at a time and that dies with its process."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from extract.errors import CacheError


class Lock:
    """Holds a lock file by `flock`; who holds it is written into the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def acquire(self) -> None:
        """Raises CacheError naming the holder when another process has it, OSError otherwise."""
        file = self.path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"{os.getpid()} on {socket.gethostname()} since {since}".encode())
        except BlockingIOError:
            file.seek(0)
            holder = file.read().decode("utf-8", "replace").strip() or "of unknown number"
            file.close()
            raise CacheError(
                f"{self.path.parent}: another process is writing there (process {holder}); wait"
                " until it ends, or give another --out"
            ) from None
        except OSError:
            file.close()
            raise
        self._file = file

    def release(self) -> None:
        """Let another process have it; may be called without holding it."""
        if self._file is not None:
            self._file.close()
            self._file = None
