"""Folders outside the installation, and what happens where they cannot be written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evaluate import paths
from evaluate.paths import cache_dir, data_dir


def test_xdg_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    assert cache_dir("x") == tmp_path / "c" / "caption-pipeline" / "x"
    assert data_dir("x") == tmp_path / "d" / "caption-pipeline" / "x"
    assert cache_dir("x").is_dir() and not (tmp_path / "d").exists()


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_home_where_xdg_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("XDG_DATA_HOME", value)
    assert cache_dir("x") == tmp_path / ".cache" / "caption-pipeline" / "x"
    assert data_dir("x") == tmp_path / ".local" / "share" / "caption-pipeline" / "x"


def test_unwritable_cache_goes_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(paths.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    assert cache_dir("x") == tmp_path / "tmp" / f"caption-pipeline-{os.getuid()}" / "x"


def test_somebody_elses_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(paths.os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    monkeypatch.setattr(paths.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    made = tmp_path / "made"
    monkeypatch.setattr(paths.tempfile, "mkdtemp", lambda prefix: str(made))
    assert cache_dir("x") == made
