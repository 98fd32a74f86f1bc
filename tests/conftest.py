"""Where tests find data that is not part of the project."""

from __future__ import annotations

import os
from dataclasses import dataclass
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


QUICK = (
    "xe.epochs=2",
    "xe.warmup=5",
    "scst.epochs=1",
    "model.width=32",
    "model.feed_forward=64",
    "vocabulary.min_count=1",
    "decoding.beam=2",
)


@dataclass(frozen=True)
class SmallDemo:
    """What `pipeline demo` made of 60 scenes with `QUICK` settings."""

    out: Path
    table: str
    report: Path

    @property
    def run(self) -> Path:
        return self.out / "transformer"

    @property
    def scenes(self) -> Path:
        return self.out / "scenes"


@pytest.fixture(scope="session")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> SmallDemo:
    from pipeline import demo  # here, since tests of scoring alone need no torch

    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "METRICS", ("bleu", "rouge", "cider"))
        patch.chdir(folder)  # `make demo` gives a relative folder too
        table, report = demo.run_demo(Path("demo"), 60, "cpu", QUICK)
    return SmallDemo(out=folder / "demo", table=table, report=folder / report)
