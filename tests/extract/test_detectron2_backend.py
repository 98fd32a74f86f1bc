"""Detectron2's own model gives the same cache; without the library a sentence says what to type."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from extract.detector_config import Selection
from extract.detectron2_backend import Detectron2Detector
from extract.errors import ExtractError
from extract.extractors import make_extractor
from extract.run import extract_in_memory
from extract.sources import find_sources
from tests.extract.detector_toy import small, write_weights
from tests.extract.test_detector_extractor import photos  # noqa: F401

HERE = importlib.util.find_spec("detectron2") is not None
needs_detectron2 = pytest.mark.skipif(
    not HERE, reason="detectron2 is not installed; put a checkout and fvcore on PYTHONPATH"
)


@needs_detectron2
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["bua-d2-r101", "grid-x101", "grid-x152pp", "fpn-pyramid"])
def test_detectron2_gives_the_same_cache(name: str, photos: Path, tmp_path: Path) -> None:  # noqa: F811
    if name == "grid-x152pp" and importlib.util.find_spec("detectron2._C") is None:
        pytest.skip("detectron2._C is not built, which its deformable convolutions need")
    rule = Selection(rule="detections", score=0.01, least=0, most=12, thresholds=(0.5,))
    changes = {"regions": True, "grids": False} if name == "fpn-pyramid" else {}
    preset = small(name, selection=rule, **changes)
    path = write_weights(preset, tmp_path / "weights.safetensors")
    sources, found = find_sources([photos])[:2], {}
    for backend in ("torch", "detectron2"):
        made = make_extractor(name, preset, "cpu", None, path, backend)
        assert ("detectron2" in made.meta["versions"]) is (backend == "detectron2")
        found[backend] = extract_in_memory(sources, made)[0]
    for ours, theirs in zip(found["torch"], found["detectron2"], strict=True):
        for stream in ours.streams:
            a, b = ours.streams[stream], theirs.streams[stream]
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-3 * float(np.abs(b).max()))
            np.testing.assert_allclose(ours.boxes[stream], theirs.boxes[stream], atol=0.02)
        for name_, values in ours.extras.get("regions", {}).items():
            np.testing.assert_allclose(values, theirs.extras["regions"][name_], atol=5e-4)


@pytest.mark.skipif(HERE, reason="detectron2 is installed")
def test_without_detectron2_the_error_says_what_to_type() -> None:
    with pytest.raises(ExtractError, match="pip install --no-build-isolation"):
        Detectron2Detector(small("bua-d2-r101").detector)
    assert "detectron2" not in sys.modules


@pytest.mark.parametrize("name", ["butd-c4-36", "bua-c4-r152-100"])
def test_what_detectron2_lacks_is_named(name: str) -> None:
    with pytest.raises(ExtractError, match="detectron2 has no Caffe pooling in the stem"):
        Detectron2Detector(small(name).detector)
