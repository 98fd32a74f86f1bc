"""Files that are whole under their name or not there, and nothing else left beside them."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from extract.durable import replacing, replacing_large, write_bytes, write_text
from pipeline import files

ROOT = Path(__file__).parents[2]
# Writes into a file that is not whole yet, says its name and waits to be killed.
WRITER = """
import sys, time
from pathlib import Path
from extract.durable import replacing_large
with replacing_large(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    print(temporary.name, flush=True)
    time.sleep(600)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "a.txt"
    write_text(out, "olé")
    assert out.read_text(encoding="utf-8") == "olé"
    with pytest.raises(KeyboardInterrupt), replacing(out) as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    with replacing(out, mark=7) as temporary:
        assert temporary.name == ".a.txt.7.tmp"
        temporary.write_bytes(b"new")
        assert out.read_text(encoding="utf-8") == "olé"
    assert out.read_bytes() == b"new" and names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("write", [write_bytes, files.write_bytes])
def test_the_file_is_synced_before_its_folder(
    write: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()

    def fsync(handle: int) -> None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        synced.append("folder" if folder else "file")
        assert (tmp_path / "a").exists() == folder

    monkeypatch.setattr(os, "fsync", fsync)
    assert callable(write)
    write(tmp_path / "a", b"x")
    assert synced == ["file", "folder"]


def test_what_a_kill_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    out = tmp_path / "m[1].h5"
    command = [sys.executable, "-c", WRITER, str(out)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = process.stdout.readline().strip()
        with replacing_large(out) as temporary:
            temporary.write_bytes(b"first")
        assert names(tmp_path) == sorted([left, out.name])
        process.send_signal(signal.SIGKILL)
    (tmp_path / ".other.h5.1.tmp").write_bytes(b"of another file")
    with replacing_large(out) as temporary:
        temporary.write_bytes(b"second")
    assert out.read_bytes() == b"second"
    assert names(tmp_path) == [".other.h5.1.tmp", out.name]


def test_the_lock_holds_until_the_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def locked(source: Path, target: Path) -> None:
        with source.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        rename(source, target)

    monkeypatch.setattr(os, "replace", locked)
    with replacing_large(tmp_path / "a") as temporary:
        temporary.write_bytes(b"x")
    assert names(tmp_path) == ["a"]
