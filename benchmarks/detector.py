"""A detector's seconds for an image: ours beside detectron2's own model, same random weights.

    python benchmarks/detector.py --detectron2 CHECKOUT [--preset bua-d2-r101] [--threads 2]

CHECKOUT is a clone of facebookresearch/detectron2 (what it imports, such as fvcore, must be
installed; it need not be compiled). Both sides get the same tensor of a drawn picture, 4 to 3, at
the preset's size, and go all the way: maps, proposals, pooled regions, classes, boxes, attributes
and the choice of regions, or maps only where the preset makes grids or a pyramid. `--regions` adds
them there. Sides take turns; the best turn of each counts.

Prints one line of JSON: wall and CPU seconds, `ratio` and `cpu_ratio` (theirs over ours), and the
peak memory in MiB, ours alone with `--only ours`. Of maps `difference` is the largest, beside the
`largest` number; of regions `matched` is the share of ours that detectron2 has too, within a
thousandth of the largest number: with random weights some proposals tie, so a few may differ.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extract.box_selection import select
from extract.checkpoint import load_detector
from extract.detector import Detector
from extract.detector_presets import DETECTOR_PRESETS, DetectorPreset
from extract.resize import network_input
from extract.rpn import Frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--detectron2", type=Path, help="a checkout of detectron2")
    parser.add_argument("--preset", default="bua-d2-r101", choices=DETECTOR_PRESETS)
    parser.add_argument("--regions", action="store_true", help="of grid and pyramid presets too")
    parser.add_argument("--precision", default="float32", help="of our side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2, help="turns of each side")
    parser.add_argument("--only", choices=["ours"], help="leave the comparison out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    preset = DETECTOR_PRESETS[options.preset]
    if options.regions:
        preset = replace(preset, regions=True, grids=False, pyramid=())
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        sides = {"ours": ours(preset, options.precision)}
        if options.only is None:
            sys.path.insert(0, str(options.detectron2))
            sides["theirs"] = theirs(preset)
        facts = race(sides, options.repeats)
    kept = {key: getattr(options, key) for key in ("preset", "regions", "precision", "threads")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**kept, **facts, "peak_mib": round(peak)}))


def weights(preset: DetectorPreset) -> dict[str, Tensor]:
    """Weights under which numbers stay moderate and boxes differ."""
    torch.manual_seed(0)
    tensors = Detector(preset.built).state_dict()
    for name, tensor in tensors.items():
        if name.endswith("norm.weight") and "conv3" in name:
            tensor.fill_(0.2)
        elif "objectness_logits.weight" in name or "cls_score.weight" in name:
            tensor.mul_(20)
    return tensors


def picture(preset: DetectorPreset) -> tuple[Tensor, Frame]:
    """A drawn picture as the network wants it, (1, 3, H, W)."""
    torch.manual_seed(1)
    small = torch.rand(1, 3, 24, 32)
    large = torch.nn.functional.interpolate(small, scale_factor=20, mode="bilinear")
    rgb = (large[0] * 255).byte().permute(1, 2, 0).numpy()  # (480, 640, 3)
    given = network_input(rgb, preset.detector.pixels)
    return given.pixels[None], Frame(given.height, given.width, given.scale_x)


def ours(preset: DetectorPreset, precision: str) -> Callable[[], Tensor]:
    detector = Detector(preset.built)
    load_detector(detector, weights(preset), "random weights")
    detector.fold().set_precision(getattr(torch, precision)).arrange(torch.device("cpu"))
    pixels, frame = picture(preset)
    config = preset.detector

    def run() -> Tensor:
        maps = detector.maps(pixels, preset.maps)
        if not preset.regions:
            return last_map(detector, maps, preset)
        boxes = detector.proposals(maps, [frame])[0].boxes
        outputs = detector.regions(maps, 0, boxes)
        select(outputs, boxes, frame, config.roi, preset.selection, config.plus_one)
        return outputs.features

    return run


def theirs(preset: DetectorPreset) -> Callable[[], Tensor]:
    from detectron2.structures import Boxes, Instances

    from extract.detectron2_backend import Detectron2Detector

    detector = Detectron2Detector(preset.built)
    load_detector(detector, weights(preset), "random weights")
    pixels, frame = picture(preset)

    def run() -> Tensor:
        maps = detector.maps(pixels, preset.maps)
        if not preset.regions:
            return last_map(detector, maps, preset)
        boxes = detector.proposals(maps, [frame])[0].boxes
        outputs = detector.regions(maps, 0, boxes)
        proposals = Instances((frame.height, frame.width), proposal_boxes=Boxes(boxes))
        detector.heads.box_predictor.inference((outputs.logits, outputs.deltas), [proposals])
        return outputs.features

    return run


def last_map(detector: Detector, maps: dict[str, Tensor], preset: DetectorPreset) -> Tensor:
    if preset.pyramid:
        return torch.cat([maps[name].flatten() for name in preset.pyramid])
    return detector.grid(maps)


def race(sides: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, Any]:
    best: dict[str, float] = {}
    found: dict[str, Tensor] = {}
    for _ in range(repeats):
        for side, run in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            found[side] = run().float()
            spent = {"s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            for kind, value in spent.items():
                key = f"{side}_{kind}"
                best[key] = min(value, best.get(key, value))
    facts: dict[str, Any] = {key: round(value, 3) for key, value in best.items()}
    if "theirs" in found:
        a, b = found["ours"], found["theirs"]
        if a.shape != b.shape:
            raise SystemExit(f"ours gives {tuple(a.shape)}, detectron2 {tuple(b.shape)}")
        difference, largest = float((a - b).abs().max()), float(b.abs().max())
        facts |= {"difference": difference, "largest": largest}
        if a.ndim == 2:  # regions, perhaps in another order
            nearest = torch.cdist(a, b).argmin(dim=1)  # (R,)
            near = (a - b[nearest]).abs().amax(dim=1) <= 1e-3 * largest  # (R,)
            facts["matched"] = float(near.float().mean())
        facts["ratio"] = round(best["theirs_s"] / best["ours_s"], 2)
        facts["cpu_ratio"] = round(best["theirs_cpu_s"] / best["ours_cpu_s"], 2)
    return facts


if __name__ == "__main__":
    main()
