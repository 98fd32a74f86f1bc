"""What an installation holds: every file of the four rooms, nothing beside them, no warning."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

ROOMS = ("caption", "evaluate", "extract", "pipeline")
KINDS = {".py", ".yaml", ".json", ".html", ".css", ".java", ".jar", ".typed"}


def files_below(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_all_files_of_the_rooms_are_installed_and_no_others(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    source, built = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / room, source / room, ignore=ignored)
    wanted = {f"{room}/{name}" for room in ROOMS for name in files_below(source / room)}
    assert {Path(name).suffix for name in wanted} >= KINDS
    for beside in ("tests", "benchmarks", "docs", "pipeline/__pycache__", "extractions"):
        (source / beside).mkdir()
        (source / beside / "other.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "build_py"]
        + ["--build-lib", str(built)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "absent" not in done.stdout + done.stderr
    assert files_below(built) == wanted
