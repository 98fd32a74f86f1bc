"""Non-maximum suppression: by class without a loop over classes, and Caffe's.

Legend: N boxes in all, E pairs of boxes.
"""

from __future__ import annotations

import numpy as np
import torch
import torchvision
from torch import Tensor

_PAIRS = 4_000_000  # compared at once


def nms(boxes: Tensor, scores: Tensor, threshold: float, plus_one: bool = False) -> Tensor:
    """Which of the boxes (N, 4) stay, best first.

    A box goes when its overlap with a better one that stays exceeds the threshold; in Caffe's
    convention (`plus_one`) also when it equals it.
    """
    if plus_one:
        boxes = boxes + boxes.new_tensor([0.0, 0.0, 1.0, 1.0])
        threshold = _just_below(threshold)
    return torchvision.ops.nms(boxes, scores, threshold)


def nms_by_class(
    boxes: Tensor, scores: Tensor, classes: Tensor, threshold: float, plus_one: bool = False
) -> Tensor:
    """`nms` within each class: which of the boxes (N, 4) stay, best of all classes first.

    Equal to a loop over classes for any number of them: pairs of one class are compared in
    float32 as torchvision does, and the pairs that overlap are resolved together. (Its
    `batched_nms` moves classes apart, where float32 loses up to an eighth of a pixel.)
    """
    order = torch.sort(scores, descending=True, stable=True).indices  # (N,)
    by_class = order[torch.sort(classes[order], stable=True).indices]  # (N,) class, then score
    suppressor, suppressed = _overlapping(boxes[by_class], classes[by_class], threshold, plus_one)
    stays = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)  # by place in by_class
    while len(suppressor):
        # a box goes when one that stays suppresses it; chains settle from their best box on
        now = torch.ones_like(stays)
        now[suppressed[stays[suppressor]]] = False
        if torch.equal(now, stays):
            break
        stays = now
    kept = torch.zeros_like(stays)
    kept[by_class] = stays
    return order[kept[order]]


def _overlapping(
    boxes: Tensor, classes: Tensor, threshold: float, plus_one: bool
) -> tuple[Tensor, Tensor]:
    """Places (E,) of better and worse boxes that overlap; boxes come by class, then score."""
    places = torch.arange(len(boxes), device=boxes.device)
    counts = torch.unique_consecutive(classes, return_counts=True)[1]  # boxes of each class
    ends = torch.repeat_interleave(counts.cumsum(0), counts)  # (N,) where the class of each ends
    rivals = ends - places - 1  # (N,) worse boxes of its class
    total = rivals.cumsum(0)
    found: list[tuple[Tensor, Tensor]] = []
    start, done = 0, 0
    while start < len(boxes):
        stop = int(torch.searchsorted(total, done + _PAIRS, right=True))
        stop = min(max(stop, start + 1), len(boxes))
        first = torch.repeat_interleave(places[start:stop], rivals[start:stop])  # (E,)
        before = (total - rivals)[first]  # pairs of earlier boxes
        second = first + 1 + torch.arange(done, done + len(first), device=first.device) - before
        over = _overlap(boxes[first], boxes[second], plus_one)
        hit = over.double() > (_just_below(threshold) if plus_one else threshold)
        found.append((first[hit], second[hit]))
        start, done = stop, done + len(first)
    if not found:
        return places, places
    return torch.cat([f for f, _ in found]), torch.cat([s for _, s in found])


def _overlap(a: Tensor, b: Tensor, plus_one: bool) -> Tensor:
    """Intersection over union of boxes (E, 4) and (E, 4), in torchvision's order of operations."""
    if plus_one:
        one = a.new_tensor([0.0, 0.0, 1.0, 1.0])
        a, b = a + one, b + one
    areas = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]  # (E,) each
    sides = torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])  # (E, 2)
    sides = sides.clamp(min=0)
    common = sides[:, 0] * sides[:, 1]  # (E,)
    return common / (areas[0] + areas[1] - common)


def _just_below(threshold: float) -> float:
    """So that `> result` means `>= threshold` in float32."""
    return float(np.nextafter(np.float32(threshold), np.float32(0)))
