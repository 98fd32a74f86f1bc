"""Detectors against the official programs: every tensor of every case under golden/det.

Maps, features, logits and boxes stay within the tolerances that the cases' FORMAT.md suggests;
inputs and everything discrete are equal.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from extract.box_geometry import clip
from extract.box_selection import (
    best_kept_scores,
    class_boxes,
    foreground,
    select,
    to_original,
)
from extract.checkpoint import load_detector, read_checkpoint
from extract.detector import Detector
from extract.detector_config import RoiConfig, Selection
from extract.detectron2_config import from_detectron2
from extract.resize import NetworkInput, network_input, pillow_resized
from extract.roi import RegionOutputs
from extract.rpn import Frame, Proposals
from tests.conftest import golden_root

MAP, LOGIT, PROBABILITY, BOX, UNCLIPPED, EXACT = 2e-3, 3e-3, 5e-4, 0.02, 0.05, 0.0
SCALE = 1e-6  # of a ratio in single precision
TIE = 2e-6  # Caffe's RPN probabilities that may change places on another device (FORMAT.md)
CORNER = 40  # pixels
Found = dict[str, tuple[Any, float]]  # name -> value and tolerance


def cases() -> list[Path]:
    folder = golden_root() / "det"
    return sorted(p.parent for p in folder.glob("*/case.json")) if folder.is_dir() else []


@pytest.fixture(scope="module", params=cases(), ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def case(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "case.json").read_text())
    return content


@pytest.fixture(scope="module")
def detector(folder: Path, case: dict[str, Any]) -> Detector:
    """The case's detector as extraction uses it: norms folded."""
    config = from_detectron2(case["config"], folder / "case.json")
    weights = read_checkpoint(folder / "weights.safetensors")
    if not any(name.startswith("roi_heads.") for name in weights):
        config = replace(config, roi=replace(config.roi, head="none"))
    detector = Detector(config)
    load_detector(detector, weights, folder)
    return detector.fold().arrange(torch.device("cpu"))


@torch.inference_mode()
def test_every_number(folder: Path, case: dict[str, Any], detector: Detector) -> None:
    expected = load_file(folder / "expected.safetensors")
    for number, name in enumerate(case["images"]):
        rgb = np.asarray(Image.open(folder / name).convert("RGB"))
        wanted = {
            key.partition("/")[2]: value
            for key, value in expected.items()
            if key.startswith(f"img{number}/")
        }
        found = everything(detector, rgb, case.get("selection", {}), wanted)
        assert wanted, f"no expected numbers of {name}"
        for key, value in wanted.items():
            assert key in found, f"{folder.name} {name}: {key} was not computed"
            ours, tolerance = found[key]
            compare(torch.as_tensor(ours), value, tolerance, f"{folder.name} {name}: {key}")


def compare(ours: Tensor, wanted: Tensor, tolerance: float, where: str) -> None:
    assert ours.shape == wanted.shape, where
    difference = float((ours.double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
    assert difference <= tolerance, f"{where}: off by {difference:.2e}, allowed {tolerance}"


def everything(
    detector: Detector, rgb: np.ndarray, rules: dict[str, Any], wanted: dict[str, Tensor]
) -> Found:
    """All that a case may name, for one image."""
    config = detector.config
    given = network_input(rgb, config.pixels)
    maps = detector.maps(given.pixels[None])
    found = inputs(given, rgb, detector) | named_maps(detector, maps)
    if detector.proposal_generator is None or detector.roi_heads is None:
        return found
    frame = Frame(given.height, given.width, given.scale_x)
    predicted = detector.proposal_generator.predict(maps)
    for name, (scores, deltas) in zip(config.rpn.maps, predicted, strict=True):
        suffix = f"_{name}" if len(predicted) > 1 else ""
        found[f"rpn_logits{suffix}"] = scores[0], LOGIT
        found[f"rpn_deltas{suffix}"] = deltas[0], LOGIT
    proposals = detector.proposals(maps, [frame])[0]
    if config.rpn.softmax:
        proposals = in_order(proposals, wanted["prop_boxes"])
    boxes = proposals.boxes
    found["prop_boxes"] = boxes, BOX
    found["prop_logits"] = proposals.scores, LOGIT
    found["prop_scores"] = proposals.scores, PROBABILITY
    heads = detector.roi_heads
    levels = heads.pooler.levels(boxes)
    if levels is not None:
        found["prop_level"] = levels + int(config.roi.maps[0][-1]), EXACT
    pooled = heads.pooler([maps[name] for name in config.roi.maps], boxes, levels)
    found["pooled_first1"] = pooled[:1], MAP
    found["pooled"] = pooled.flatten(1), MAP
    if heads.res5 is not None:
        last = heads.last_map(pooled, config.roi.res5_dilation)
        found["res5_shape"] = list(last.shape), EXACT
    outputs = detector.regions(maps, 0, boxes)
    found |= outcome("", outputs)
    per_class = class_boxes(outputs, boxes, config.roi, config.plus_one)
    if not config.roi.background_first:
        found["boxes_per_class"] = per_class.flatten(1), UNCLIPPED
    scene = Scene(detector, maps, rgb, given, frame, boxes, outputs, pooled)
    return found | scene.selections(rules)


def inputs(given: NetworkInput, rgb: np.ndarray, detector: Detector) -> Found:
    found: Found = {
        "input": (given.pixels, EXACT),
        "input_shape": (list(given.pixels.shape), EXACT),
        "input_tl": (given.pixels[:, :CORNER, :CORNER], EXACT),
        "input_br": (given.pixels[:, -CORNER:, -CORNER:], EXACT),
        "image_hw": (list(rgb.shape[:2]), EXACT),
        "unpadded_hw": ([given.height, given.width], EXACT),
        "im_scale": (given.scale_x, SCALE),
    }
    if detector.config.pixels.resize == "pillow":
        found["input_u8_bgr"] = pillow_resized(rgb, detector.config.pixels), EXACT
    return found


def named_maps(detector: Detector, maps: dict[str, Tensor]) -> Found:
    found: Found = {name: (x[0], MAP) for name, x in maps.items()}
    if "res4_raw" in maps:
        found["res4_act"] = maps["res4"][0], MAP
    else:
        found["res4_raw"] = maps["res4"][0], MAP
    if "res5" in maps:
        found["res5_dil2"] = maps["res5"][0], MAP
        grid = detector.grid(maps)
        found["grid_res5"] = grid[0], MAP
        found["grid_7x7"] = F.adaptive_avg_pool2d(grid, 7)[0], MAP
    if "p3" in maps:
        found["p3_pool28"] = F.adaptive_avg_pool2d(maps["p3"], 28)[0], MAP
        found["p5_pool14"] = F.adaptive_avg_pool2d(maps["p5"], 14)[0], MAP
    return found


def in_order(proposals: Proposals, wanted: Tensor) -> Proposals:
    """Proposals in the order that is expected where their scores are tied but for noise."""
    place = torch.cdist(wanted, proposals.boxes).argmin(dim=1)  # (N,)
    assert sorted(place.tolist()) == list(range(len(proposals.boxes)))
    moved = (proposals.scores[place] - proposals.scores).abs()
    assert float(moved.max()) <= TIE
    return Proposals(proposals.boxes[place], proposals.scores[place])


def outcome(prefix: str, outputs: RegionOutputs) -> Found:
    probabilities = outputs.logits.softmax(dim=1)
    found: Found = {
        "box_features": (outputs.features, MAP),
        "x": (outputs.features, MAP),
        "cls_logits": (outputs.logits, LOGIT),
        "cls_probs": (probabilities, PROBABILITY),
        "bbox_deltas": (outputs.deltas, LOGIT),
        "obj_label": (outputs.logits.argmax(dim=1), EXACT),
    }
    if outputs.attributes is not None:
        found["attr_logits"] = outputs.attributes, LOGIT
        found["attr_probs"] = outputs.attributes.softmax(dim=1), PROBABILITY
        shares = outputs.attributes[:, :-1].softmax(dim=1).max(dim=1)  # without "none"
        found["attr_prob"] = shares.values, PROBABILITY
        found["attr_label"] = shares.indices, EXACT
    return {f"{prefix}{name}": value for name, value in found.items()}


class Scene:
    """One image with all that its selections are made from."""

    def __init__(
        self,
        detector: Detector,
        maps: dict[str, Tensor],
        rgb: np.ndarray,
        given: NetworkInput,
        frame: Frame,
        boxes: Tensor,
        outputs: RegionOutputs,
        pooled: Tensor,
    ) -> None:
        self.detector, self.maps, self.given, self.frame = detector, maps, given, frame
        self.height, self.width = rgb.shape[:2]
        self.boxes, self.outputs, self.pooled = boxes, outputs, pooled

    def selections(self, rules: dict[str, Any]) -> Found:
        """The chosen regions by each rule that the case names."""
        if "sets" in rules:
            return self.anderson(rules)
        if "NUM_OBJECTS" in rules:
            count, steps = rules["NUM_OBJECTS"], [n / 10 for n in range(3, 10)]
            demo = Selection(
                rule="rising-nms",
                score=rules["score_thresh"],
                most=count,
                thresholds=tuple(s for s in steps if s >= 0.5),
            )
            best = Selection(
                rule="rising-nms-best-class", least=count, most=count, thresholds=tuple(steps)
            )
            return self.chosen("demo", demo) | self.chosen("maxnms", best)
        named = {"def": rules["default"], "b100": rules["b100"]} if "b100" in rules else {}
        found: Found = {}
        for name, rule in (named or {"det": rules}).items():
            selection = Selection(
                rule="detections",
                score=rule["score_thresh"],
                least=0,
                most=rule["topk"],
                thresholds=(rule["nms"],),
            )
            found |= self.chosen(name, selection)
        return found

    def chosen(self, prefix: str, selection: Selection) -> Found:
        config, outputs = self.detector.config, self.outputs
        chosen = select(outputs, self.boxes, self.frame, config.roi, selection, config.plus_one)
        ids, scales = chosen.ids, (self.given.scale_x, self.given.scale_y)
        original = to_original(chosen.boxes, scales, self.width, self.height)
        features = outputs.features[ids]
        found: Found = {
            "ids": (ids, EXACT),
            "classes": (chosen.classes, EXACT),
            "scores": (chosen.scores, PROBABILITY),
            "nms_thresh": (chosen.threshold, SCALE),
            "boxes_input_px": (chosen.boxes, BOX),
            "boxes": (original, BOX),
            "features": (features, MAP),
            "pooled": (self.pooled.flatten(1)[ids], MAP),
            "npz_x": (features, MAP),
            "npz_bbox": (chosen.boxes / self.frame.scale, BOX),
            "npz_cls_prob": (foreground(outputs.logits, False)[ids], PROBABILITY),
        }
        if outputs.attributes is not None:
            every = outcome("", outputs)
            for name in ("attr_probs", "attr_prob", "attr_label"):
                value, tolerance = every[name]
                found[name] = value[ids], tolerance
        return {f"{prefix}/{name}": value for name, value in found.items()}

    def anderson(self, rules: dict[str, Any]) -> Found:
        """Bottom-up attention's rule with several limits, and its two stages."""
        config, found, most = self.detector.config, {}, 0
        for name, (least, most) in rules["sets"].items():
            selection = Selection(
                score=rules["CONF_THRESH"], least=least, most=most, thresholds=(rules["NMS"],)
            )
            chosen = select(self.outputs, self.boxes, self.frame, config.roi, selection, True)
            attributes = self.outputs.attributes
            assert attributes is not None
            best = attributes.softmax(dim=1)[chosen.ids, 1:].max(dim=1)
            values: Found = {
                "x": (self.outputs.features[chosen.ids], MAP),
                "bbox": (chosen.boxes / self.frame.scale, BOX),
                "num_bbox": (len(chosen.ids), EXACT),
                "objects_id": (chosen.classes, EXACT),
                "objects_conf": (chosen.scores, PROBABILITY),
                "attrs_id": (best.indices, EXACT),
                "attrs_conf": (best.values, PROBABILITY),
            }
            found |= {f"roi_feats/{name}/{key}": value for key, value in values.items()}
        boxes = first_stage_boxes(self.outputs, self.boxes, self.frame, config.roi, most)
        found["bboxes_mode2/bbox"] = boxes, BOX
        again = self.detector.regions(self.maps, 0, boxes * self.frame.scale)
        return found | outcome("bbox_feats_mode3/", again)


def first_stage_boxes(
    outputs: RegionOutputs,
    proposals: Tensor,
    frame: Frame,
    config: RoiConfig,
    most: int,
    threshold: float = 0.3,
) -> Tensor:
    """Boxes (M, 4) in pixels of the original, as the first of bottom-up attention's two stages.

    The best class's regressed boxes, ranked by the best score that survives NMS by class.
    """
    scores = foreground(outputs.logits, config.background_first)  # (R, K)
    boxes = class_boxes(outputs, proposals / frame.scale, config, True)  # (R, K, 4)
    boxes = clip(boxes, frame.height / frame.scale, frame.width / frame.scale, True)
    label = scores.argmax(dim=1)
    own = boxes[torch.arange(len(boxes), device=boxes.device), label]  # (R, 4)
    rule = Selection(score=1.0, least=most, most=most, thresholds=(threshold,))
    best = best_kept_scores(own, scores, rule, True)
    return own[torch.sort(best, descending=True, stable=True).indices[:most]]
