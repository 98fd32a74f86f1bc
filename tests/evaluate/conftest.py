"""What several tests of scoring stand on."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_SIZE = 1 << 16  # bytes


@pytest.fixture()
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system without a free block, which takes caches and data; needs the right to mount."""
    if shutil.which("mount") is None:
        pytest.skip("no `mount` to make a small disk with")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    try:
        (disk / "filling").write_bytes(bytes(_SIZE))
        with pytest.raises(OSError) as caught:
            (disk / "one byte").write_bytes(b"x")
        assert caught.value.errno == errno.ENOSPC
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        monkeypatch.setenv("XDG_DATA_HOME", str(disk))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
