"""Golden files of the evaluation, found by pattern and read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest


def golden_files(golden_dir: Path, pattern: str) -> list[Path]:
    """The files `eval/PATTERN`, sorted; skips the test where there are none."""
    files = sorted((golden_dir / "eval").glob(pattern))
    if not files:
        pytest.skip(f"no {pattern} in {golden_dir / 'eval'}")
    return files


def read_json(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)
