"""Where tests find data that is not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared_root() -> Path:
    """The folder of shared test data: `$SHARED_DIR`, else `../shared` beside the repository."""
    return Path(os.environ.get("SHARED_DIR", ROOT.parent / "shared"))


def golden_root() -> Path:
    """The folder of golden numbers: `$GOLDEN_DIR`, else `golden` in the shared folder."""
    return Path(os.environ.get("GOLDEN_DIR", shared_root() / "golden"))


def _existing(path: Path, variable: str) -> Path:
    if not path.is_dir():
        pytest.skip(f"no shared test data at {path} (set {variable})")
    return path


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    return _existing(shared_root(), "SHARED_DIR")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return _existing(golden_root(), "GOLDEN_DIR")
