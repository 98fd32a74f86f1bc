"""The locks on a cache folder: they die with their process and hold between machines."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from extract.errors import CacheError
from extract.share import Share


class Lock:
    """Holds by `flock` a file of its rank, alone, and `.lock` with all processes of its run.

    `.lock` tells how many processes the run has. Runs of other numbers of processes would split
    the images otherwise, so they are kept out. Who holds a rank is written into its file.
    """

    def __init__(self, folder: Path, share: Share) -> None:
        self.folder, self.share = folder, share
        self._files: list[BinaryIO] = []

    def acquire(self) -> None:
        """Raises CacheError naming the holder when another process has it, OSError otherwise."""
        try:
            self._hold_rank()
            self._hold_run()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let another process have it; may be called without holding it."""
        while self._files:
            self._files.pop().close()

    def _open(self, name: str) -> BinaryIO:
        file = (self.folder / name).open("ab+", buffering=0)
        self._files.append(file)
        return file

    def _hold_rank(self) -> None:
        file = self._open(f".lock-{self.share.rank}")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _content(file) or "of unknown number"
            raise CacheError(
                f"{self.folder}: another process is writing there (process {holder}); wait"
                " until it ends, or give another --out"
            ) from None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        _fill(file, f"{os.getpid()} on {socket.gethostname()} since {since}")

    def _hold_run(self) -> None:
        """The first process of a run finds nobody and writes down their number."""
        file = self._open(".lock")
        wanted = str(self.share.world)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _fill(file, wanted)
        except BlockingIOError:
            pass
        # Going from alone to shared may let another process write its number in between.
        fcntl.flock(file, fcntl.LOCK_SH)
        found = _content(file)
        if found != wanted:
            raise CacheError(
                f"{self.folder}: a run of {found} processes is writing there, this one is of"
                f" {wanted}; wait until it ends, or give another --out"
            )


def _fill(file: BinaryIO, text: str) -> None:
    file.truncate(0)
    file.write(text.encode())


def _content(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip()
