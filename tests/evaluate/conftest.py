"""What several tests of scoring stand on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import mounted

_SIZE = 1 << 16  # bytes


@pytest.fixture()
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system without a free byte, which takes caches and data; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, ["-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs"]) as reason:
        if reason:
            pytest.skip(f"no small disk: {reason}")
        (disk / "filling").write_bytes(bytes(_SIZE))
        with pytest.raises(OSError) as caught:
            (disk / "one byte").write_bytes(b"x")
        assert caught.value.errno == errno.ENOSPC
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        monkeypatch.setenv("XDG_DATA_HOME", str(disk))
        yield disk
