"""Detectors as extractors: records, batches, several streams in one pass, the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from extract import presets
from extract.boxes import read_boxes
from extract.cache import FeatureCache, ImageFeatures, flat
from extract.detector import Detector
from extract.detector_config import Selection
from extract.detector_extractor import DetectorExtractor
from extract.detector_presets import DETECTOR_PRESETS, DetectorPreset
from extract.errors import ExtractError
from extract.extractors import make_extractor, with_configuration
from extract.run import extract, extract_in_memory
from extract.sources import find_sources
from pipeline.cli import main
from tests.extract.detector_toy import ATTRIBUTES, CLASSES, small, weights_for, write_weights
from tests.extract.test_extract import assert_same

SIZES = [(60, 45), (45, 60), (60, 45), (75, 45)]  # width, height


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures of three shapes."""
    folder = tmp_path_factory.mktemp("detector") / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number, (width, height) in enumerate(SIZES):
        small = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize((width, height), 2).save(folder / f"p{number}.png")
    return folder


def extractor(preset: DetectorPreset, folder: Path, boxes: Path | None = None) -> DetectorExtractor:
    path = folder / "weights.safetensors"
    if not path.exists():
        write_weights(preset, path)
    given = read_boxes(boxes) if boxes is not None else None
    return DetectorExtractor("small", preset, "cpu", given, path)


def records(preset: DetectorPreset, photos: Path, folder: Path) -> dict[str, ImageFeatures]:
    found, failures = extract_in_memory(find_sources([photos]), extractor(preset, folder))
    assert not failures
    return {record.image_id: record for record in found}


@pytest.mark.parametrize("name", DETECTOR_PRESETS)
def test_every_preset_extracts(name: str, photos: Path, tmp_path: Path) -> None:
    """With a small network; the cache takes what comes, and its settings give the preset back."""
    preset = small(name)
    made = extractor(preset, tmp_path)
    summary = extract(find_sources([photos])[:1], made, tmp_path / "out")
    assert (summary.done, summary.failures) == (1, [])
    cache = FeatureCache(tmp_path / "out")
    assert presets.from_settings(cache.meta["settings"]) == preset
    record = cache.read("p0")
    assert set(record.streams) == set(made.streams) and made.streams
    for stream, rows in record.streams.items():
        assert 0 < len(rows) <= made.cells(stream)
        assert rows.shape[1] == made.streams[stream].width and np.ptp(rows) > 0
    if preset.regions:
        extras = record.extras["regions"]
        assert 0 <= extras["objects"].min() and extras["objects"].max() < CLASSES
        assert 0 <= extras["attributes"].min() and extras["attributes"].max() < ATTRIBUTES
        assert (extras["scores"] > 0).all() and (extras["attribute_scores"] > 0).all()


@pytest.mark.parametrize("name", ["butd-c4-10-100", "bua-d2-r101"])
def test_batched_equals_single(name: str, photos: Path, tmp_path: Path) -> None:
    """Images of one shape go together, whatever order they come in; nothing changes."""
    preset = small(name, grids=True)
    single = records(preset, photos, tmp_path)
    batched = records(replace(preset, batch=2), photos, tmp_path)
    assert single.keys() == batched.keys()
    for image, one in single.items():
        two = batched[image]
        for stream in one.streams:
            np.testing.assert_allclose(
                two.streams[stream], one.streams[stream], rtol=1e-4, atol=1e-3
            )
            np.testing.assert_allclose(two.boxes[stream], one.boxes[stream], atol=1e-3)
        np.testing.assert_array_equal(
            two.extras["regions"]["objects"], one.extras["regions"]["objects"]
        )


def test_company_does_not_matter(photos: Path, tmp_path: Path) -> None:
    """Alone, first or last of a batch: bit by bit the same."""
    made = extractor(small("butd-c4-10-100", batch=2), tmp_path)
    prepared = [made.prepare(source) for source in find_sources([photos])]
    alone = made.extract(prepared[:1])[0]
    first, last = made.extract([prepared[0], prepared[2]]), made.extract([prepared[2], prepared[0]])
    assert_same(first[0], alone)
    assert_same(last[1], alone)


def test_regions_grids_and_pyramid_in_one_pass(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One backbone pass gives what separate extractions give."""
    dense = Selection(rule="detections", score=0.0, least=0, most=20, thresholds=(0.5,))
    base = small("grid-x101", selection=dense, grid_cells=0)
    together = replace(base, regions=True, pyramid=("res4", "res3"), pyramid_cells=(0, 6))
    passes = 0
    real = Detector.maps

    def counted(self: Detector, *given: Any) -> dict[str, torch.Tensor]:
        nonlocal passes
        passes += 1
        return real(self, *given)

    monkeypatch.setattr(Detector, "maps", counted)
    both = records(together, photos, tmp_path)
    assert passes == len(SIZES)
    grids = records(base, photos, tmp_path)
    regions = records(replace(base, regions=True, grids=False), photos, tmp_path)
    for image, record in both.items():
        np.testing.assert_allclose(
            record.streams["grids"], grids[image].streams["grids"], atol=1e-5
        )
        np.testing.assert_array_equal(record.streams["regions"], regions[image].streams["regions"])
        assert record.grid_shape["pyramid_low"] == (6, 6)
    assert both["p0"].grid_shape["grids"] == (2, 3)  # 64 x 85 pixels
    corners = both["p0"].boxes["grids"]
    np.testing.assert_allclose(corners[0], [0, 0, 32 * 60 / 85, 22.5], rtol=1e-6)
    np.testing.assert_allclose(corners[-1], [64 * 60 / 85, 22.5, 60, 45], rtol=1e-6)


def test_given_boxes(photos: Path, tmp_path: Path) -> None:
    """They are pooled where they lie; what the file says of them stays."""
    chosen = extractor(small("bua-c4-10-100"), tmp_path)
    source = find_sources([photos])[0]
    own = chosen.extract([chosen.prepare(source)])[0]
    boxes = tmp_path / "boxes.json"
    entry = {"boxes": own.boxes["regions"].tolist(), "classes": [7] * len(own.boxes["regions"])}
    boxes.write_text(json.dumps({source.image_id: entry}))
    given = extractor(small("bua-c4-10-100"), tmp_path, boxes)
    found = given.extract([given.prepare(source)])[0]
    np.testing.assert_allclose(found.streams["regions"], own.streams["regions"], atol=2e-3)
    assert found.extras["regions"]["objects"].tolist() == [7] * len(own.boxes["regions"])
    np.testing.assert_allclose(
        found.extras["regions"]["scores"], own.extras["regions"]["scores"], atol=1e-4
    )


def test_no_proposals_is_a_failure_of_that_image(photos: Path, tmp_path: Path) -> None:
    preset = small("bua-d2-r101")
    rpn = replace(preset.detector.rpn, min_size=1e6)
    preset = replace(preset, detector=replace(preset.detector, rpn=rpn))
    summary = extract(find_sources([photos])[:1], extractor(preset, tmp_path), tmp_path / "out")
    assert [failure.reason for failure in summary.failures] == ["bad-features"]


def test_pooled_region_features(photos: Path, tmp_path: Path) -> None:
    preset = small("grid-r50", regions=True, region_feature="pooled")
    record = records(replace(preset, selection=Selection(least=5)), photos, tmp_path)["p0"]
    assert record.streams["regions"].shape[1] == preset.detector.map_channels("res5")


def test_half_precision_is_near_and_recorded(photos: Path, tmp_path: Path) -> None:
    preset = small("grid-x152pp")
    exact = records(preset, photos, tmp_path)
    half = replace(preset, precision="bfloat16")
    assert flat(extractor(half, tmp_path).meta["settings"])["precision"] == "bfloat16"
    rough = records(half, photos, tmp_path)
    for image, record in exact.items():
        a, b = record.streams["grids"], rough[image].streams["grids"]
        assert 0 < np.linalg.norm(a - b) < 0.1 * np.linalg.norm(a)


def test_the_command_takes_weights_and_their_configuration(
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preset = small("butd-c4-10-100")
    (tmp_path / "model.yaml").write_text(
        "MODEL:\n  CAFFE_MAXPOOL: true\n  PIXEL_MEAN: [1, 2, 3]\n"
        "  RESNETS: {DEPTH: 50, STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 16, WIDTH_PER_GROUP: 4}\n"
        "  ANCHOR_GENERATOR: {SIZES: [[16, 32]]}\n"
        "  RPN: {PRE_NMS_TOPK_TEST: 100, POST_NMS_TOPK_TEST: 20}\n"
        "  ROI_HEADS: {NUM_CLASSES: 30}\n"
        "  ROI_BOX_HEAD: {POOLER_TYPE: ROIPool, RES5HALVE: false, ATTR: true, NUM_ATTRS: 9}\n"
        'INPUT: {MIN_SIZE_TEST: 64, MAX_SIZE_TEST: 110, MIN_SIZE_TRAIN: "(96,)"}\n'
    )
    path = tmp_path / "model.safetensors"
    configured = with_configuration(preset, path)
    assert isinstance(configured, DetectorPreset) and configured.detector.pixels.mean == (1, 2, 3)
    write_weights(configured, path)
    args = ["extract", str(photos / "p0.png"), "--preset", "butd-c4-10-100", "--out"]
    with pytest.raises(SystemExit) as caught:
        main([*args, str(tmp_path / "out"), "--weights", str(path), "-o", "selection.most=12"])
    assert caught.value.code == 0, capsys.readouterr().err
    settings = FeatureCache(tmp_path / "out").meta["settings"]
    assert settings["selection"]["most"] == 12 and settings["detector"]["roi"]["classes"] == 30
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main([*args, str(tmp_path / "none")])
    assert caught.value.code == 1 and "--weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "int8"}, "precision is 'int8', wanted one of float32, bfloat16, float16"),
        ({"pyramid": ("res4",)}, "pyramid is res4, wanted two maps or none, of res2, res3, res4"),
        ({"pyramid": ("p5", "p3")}, "pyramid is p5, p3, wanted two maps"),
        ({"regions": False}, "regions, grids and pyramid are all off"),
        ({"region_feature": "pooled"}, "wanted detector.roi.resolution=1"),
        ({"selection": Selection(rule="best")}, "selection.rule is 'best'"),
    ],
)
def test_presets_that_cannot_be(change: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExtractError, match=message.replace(".", r"\.")):
        extractor(small("butd-c4-36", **change), tmp_path)


def test_imagenet_presets_take_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ExtractError, match="leave out --weights"):
        make_extractor("imagenet-grid", presets.Preset(), "cpu", None, tmp_path / "x.pth")


def test_nothing_to_do_loads_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = extractor(small("grid-r50"), tmp_path)
    sources = find_sources([photos])
    assert extract(sources, made, tmp_path / "cache").done == len(SIZES)
    monkeypatch.setattr("extract.detector_extractor.build", lambda *given: pytest.fail("built"))
    again = extract(sources, extractor(small("grid-r50"), tmp_path), tmp_path / "cache")
    assert (again.done, again.already) == (0, len(SIZES))


def test_wrong_weights_are_found_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    write_weights(small("grid-x101"), tmp_path / "weights.safetensors")
    made = extractor(small("grid-r50"), tmp_path)
    with pytest.raises(ExtractError, match="weights.safetensors"):
        extract(find_sources([photos]), made, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTOR_PRESETS)
def test_every_preset_at_full_size(name: str, tmp_path: Path) -> None:
    """With random weights of the public checkpoint's shapes, on a picture of 640 x 480."""
    preset = DETECTOR_PRESETS[name]
    random = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(random).resize((640, 480), 2).save(tmp_path / "a.png")
    tensors = weights_for(preset.detector)
    path = tmp_path / "weights.pth"
    torch.save({"model": tensors, "iteration": 1}, path)
    made = DetectorExtractor(name, preset, "cpu", None, path)
    record = extract_in_memory(find_sources([tmp_path / "a.png"]), made)[0][0]
    for stream, rows in record.streams.items():
        assert rows.shape[1] == made.streams[stream].width and np.isfinite(rows).all()
