"""Suppression and box selection over 1,600 classes: ours against loops over the classes.

    python benchmarks/nms.py [--regions 300] [--classes 1600] [--repeats 3]

`confident` is bottom-up attention's choice of 10 to 100 proposals, whose loop runs NMS for each
class over all proposals. `detections` is detectron2's choice of the best 100 (region, class) pairs
of 1,000 regions from score 0 on, whose loop runs NMS for each class over its own boxes. Boxes
overlap as proposals do, scores are softmaxes with a few confident regions. Both sides choose the
same regions in the same order, or this fails. Sides take turns; the best turn of each counts, CPU
seconds beside wall seconds.

Prints one line of JSON; `ratio` is the loop's seconds over ours.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import Tensor

from extract.box_selection import best_kept_scores, confident, detections
from extract.detector_config import Selection

CONFIDENT = Selection()
DETECTIONS = Selection(rule="detections", score=0.0, least=0, most=100, thresholds=(0.3,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regions", type=int, default=300, help="proposals of `confident`")
    parser.add_argument("--dense-regions", type=int, default=1000, help="of `detections`")
    parser.add_argument("--classes", type=int, default=1600)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    boxes, scores = scene(options.regions, options.classes)
    facts: dict[str, Any] = {"classes": options.classes, "regions": options.regions}
    facts["confident"] = race(
        lambda: confident(best_kept_scores(boxes, scores, CONFIDENT, False), CONFIDENT),
        lambda: confident(looped_best(boxes, scores), CONFIDENT),
        options.repeats,
    )
    boxes, scores = scene(options.dense_regions, options.classes)
    moves = torch.randn(len(boxes), options.classes, 4) * 5
    own = boxes[:, None] + moves  # (R, K, 4) each class's own
    own[..., 2:] = torch.maximum(own[..., 2:], own[..., :2] + 1)
    facts["detections"] = race(
        lambda: pairs(*chosen(own, scores)), lambda: looped_detections(own, scores), options.repeats
    )
    print(json.dumps(facts))


def scene(count: int, classes: int) -> tuple[Tensor, Tensor]:
    """Boxes (R, 4) around forty things and scores (R, K)."""
    torch.manual_seed(0)
    centre = (torch.rand(40, 2) * torch.tensor([800.0, 500.0])).repeat(count // 40 + 1, 1)[:count]
    size = 40 + torch.rand(count, 2) * 200
    corner = centre + torch.randn(count, 2) * 25
    logits = torch.randn(count, classes) * 2
    things = torch.arange(count) % 40
    logits[torch.arange(count), things * 7 % classes] += 10 + torch.randn(count) * 3
    return torch.cat((corner, corner + size), dim=1), logits.softmax(dim=1)


def chosen(own: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    found = detections(own, scores, DETECTIONS, plus_one=False)
    return found.ids, found.classes


def pairs(ids: Tensor, classes: Tensor) -> Tensor:
    return torch.stack((ids, classes))


def looped_best(boxes: Tensor, scores: Tensor) -> Tensor:
    best = scores.new_zeros(len(boxes))
    for label in range(scores.shape[1]):
        kept = torchvision.ops.nms(boxes, scores[:, label], 0.3)
        best[kept] = torch.maximum(best[kept], scores[kept, label])
    return best


def looped_detections(own: Tensor, scores: Tensor) -> Tensor:
    found = []
    for label in range(scores.shape[1]):
        region = (scores[:, label] > 0).nonzero()[:, 0]
        kept = region[torchvision.ops.nms(own[region, label], scores[region, label], 0.3)]
        found.append(torch.stack((kept, torch.full_like(kept, label))))
    every = torch.cat(found, dim=1)  # (2, M)
    order = torch.sort(scores[every[0], every[1]], descending=True, stable=True).indices
    return every[:, order[:100]]


def race(ours: Callable[[], Tensor], loop: Callable[[], Tensor], repeats: int) -> dict[str, float]:
    """Best seconds of both sides, who must agree."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        found = {}
        for side, run in (("ours", ours), ("loop", loop)):
            wall, cpu = time.perf_counter(), time.process_time()
            found[side] = run()
            spent = {"s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            for kind, value in spent.items():
                key = f"{side}_{kind}"
                best[key] = min(value, best.get(key, value))
        if not torch.equal(found["ours"], found["loop"]):
            raise SystemExit("the two sides chose different regions")
    facts = {key: round(value, 4) for key, value in best.items()}
    facts["ratio"] = round(best["loop_s"] / best["ours_s"], 1)
    facts["cpu_ratio"] = round(best["loop_cpu_s"] / best["ours_cpu_s"], 1)
    return facts


if __name__ == "__main__":
    main()
