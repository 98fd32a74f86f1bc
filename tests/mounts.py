"""File systems for one test: a small disk, a folder that even root cannot write to."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(folder: Path, *options: Sequence[str]) -> Iterator[str]:
    """Call `mount OPTIONS folder` once for each of `options`, and undo it in the end.

    Yields the reason why that cannot be done here, or an empty text where it is done.
    """
    reason, done = "", 0
    if shutil.which("mount") is None:
        reason = "there is no `mount`"
    try:
        for arguments in options if not reason else ():
            ran = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
            if ran.returncode:
                reason = f"mounting is not allowed: {ran.stderr.strip()}"
                break
            done = 1
        yield reason
    finally:
        if done:
            subprocess.run(["umount", str(folder)], check=True)
