"""From a preset to the extractor that works by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from extract.boxes import GivenBoxes
from extract.detector import Detector
from extract.detector_extractor import DetectorExtractor
from extract.detector_presets import BACKENDS, DetectorPreset
from extract.detectron2_backend import Detectron2Detector
from extract.detectron2_config import read_detectron2_yaml
from extract.errors import ExtractError
from extract.extractor import Extractor
from extract.prepared import FeatureExtractor
from extract.presets import Preset
from extract.weights import find_weights, get, weights_dir


def make_extractor(
    name: str,
    preset: Preset | DetectorPreset,
    device: str,
    boxes: GivenBoxes | None = None,
    weights: Path | None = None,
    backend: str = BACKENDS[0],
) -> FeatureExtractor:
    """The extractor of a preset; without `weights` the preset's own are looked up.

    Raises ExtractError when weights are missing or do not fit, or the backend cannot do it.
    """
    if isinstance(preset, Preset):
        if backend != BACKENDS[0]:
            raise ExtractError(f"preset {name} is no detector: leave out --backend {backend}")
        if weights is not None:
            raise ExtractError(f"preset {name} has its weights in its package: leave out --weights")
        return Extractor(name, preset, device, boxes)
    kind = {"torch": Detector, "detectron2": Detectron2Detector}[backend]
    file = weights or find_weights(name)
    kept = file.parent.parent == weights_dir()
    remedy = get(file.parent.name).to_replace if kept else "give another file as --weights"
    return DetectorExtractor(name, preset, device, boxes, file, kind, remedy)


def with_configuration(
    preset: Preset | DetectorPreset, weights: Path | None
) -> Preset | DetectorPreset:
    """The preset with the detector of the detectron2 YAML beside the weights, if there is one.

    That is the file of the same name with the suffix .yaml or .yml.
    """
    if weights is None or isinstance(preset, Preset):
        return preset
    for suffix in (".yaml", ".yml"):
        if weights.with_suffix(suffix).is_file():
            return replace(preset, detector=read_detectron2_yaml(weights.with_suffix(suffix)))
    return preset
