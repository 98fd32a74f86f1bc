"""Which regions of an image are kept: the rules of the official programs.

Legend: R regions, K classes without the background, M chosen ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from extract.box_geometry import clip, decode
from extract.detector_config import RoiConfig, Selection
from extract.nms import nms, nms_by_class
from extract.roi import RegionOutputs
from extract.rpn import Frame

_FIRST_ENTRIES = 2000  # best (box, class) pairs that are looked at first


@dataclass(frozen=True)
class Selected:
    """The chosen regions."""

    ids: Tensor  # (M,) places among the proposals
    boxes: Tensor  # (M, 4) pixels of the input
    classes: Tensor  # (M,) without the background
    scores: Tensor  # (M,) of that class
    threshold: float  # of NMS, the one that was used


def foreground(logits: Tensor, background_first: bool) -> Tensor:
    """Logits (R, K + 1) -> probabilities (R, K) of all classes but the background."""
    probabilities = logits.softmax(dim=1)
    return probabilities[:, 1:] if background_first else probabilities[:, :-1]


def class_boxes(
    outputs: RegionOutputs, proposals: Tensor, config: RoiConfig, plus_one: bool
) -> Tensor:
    """Boxes (R, K, 4) as each class would have them, not clipped."""
    boxes = decode(outputs.deltas, proposals, config.box_weights, plus_one)
    boxes = boxes.unflatten(1, (-1, 4))  # (R, K or K + 1, 4)
    return boxes[:, 1:] if config.background_first else boxes


def select(
    outputs: RegionOutputs,
    proposals: Tensor,
    frame: Frame,
    config: RoiConfig,
    selection: Selection,
    plus_one: bool,
) -> Selected:
    """Choose among an image's proposals (R, 4), in pixels of the input."""
    scores = foreground(outputs.logits, config.background_first)  # (R, K)
    if selection.rule == "confident-proposals":
        boxes = proposals / frame.scale  # the overlap of boxes is measured in the original
        best = best_kept_scores(boxes, scores, selection, plus_one)  # (R,)
        ids = confident(best, selection)
        found, classes = scores[ids].max(dim=1)
        return Selected(ids, proposals[ids], classes, found, selection.thresholds[0])
    regressed = class_boxes(outputs, proposals, config, plus_one)  # (R, K, 4)
    regressed = clip(regressed, frame.height, frame.width, plus_one)
    if selection.rule == "rising-nms-best-class":
        return _best_class(regressed, scores, selection, plus_one)
    return detections(regressed, scores, selection, plus_one)


def confident(best: Tensor, selection: Selection) -> Tensor:
    """Places of the regions with the best scores (R,): Anderson's rule.

    Between `least` and `most` they keep the order of the proposals, else that of the scores.
    """
    kept = (best >= selection.score).nonzero()[:, 0]
    ranked = torch.sort(best, descending=True, stable=True).indices
    if len(kept) < selection.least:
        return ranked[: selection.least]
    return ranked[: selection.most] if len(kept) > selection.most else kept


def best_kept_scores(boxes: Tensor, scores: Tensor, selection: Selection, plus_one: bool) -> Tensor:
    """(R,) best score among the classes in which a box (R, 4) survives NMS, 0 where in none.

    Exact for scores from the threshold on, and for as many of the best as `least` asks for: a
    box is only ever suppressed by a better one, so entries below a floor cannot matter above it.
    The floor sinks until enough is found.
    """
    wanted, floor = min(selection.least, len(boxes)), selection.score
    while True:
        region, label = (scores >= floor).nonzero(as_tuple=True)  # (entries,) each
        entry = scores[region, label]
        kept = nms_by_class(boxes[region], entry, label, selection.thresholds[0], plus_one)
        best = scores.new_zeros(len(boxes))
        best.scatter_reduce_(0, region[kept], entry[kept], "amax")
        if int((best >= max(floor, 1e-38)).sum()) >= wanted or floor <= 0:
            return best
        floor = floor / 4 if floor > 1e-4 else 0.0


def detections(boxes: Tensor, scores: Tensor, selection: Selection, plus_one: bool) -> Selected:
    """Detectron2's choice among boxes (R, K, 4) and scores (R, K)."""
    for threshold in selection.thresholds:
        count = _FIRST_ENTRIES
        while True:  # worse entries suppress no better ones: look at the best until enough stay
            above = scores > selection.score  # (R, K)
            if count < scores.numel():
                above &= scores >= torch.topk(scores.flatten(), count).values[-1]
            region, label = above.nonzero(as_tuple=True)  # (entries,) each
            entry = scores[region, label]
            kept = nms_by_class(boxes[region, label], entry, label, threshold, plus_one)
            if len(kept) >= selection.most or count >= scores.numel():
                break
            count *= 4
        kept = kept[: selection.most]
        if len(kept) == selection.most:
            break
    if selection.rule == "detections" and len(kept) < selection.least and selection.score > 0:
        lower = replace(selection, score=0.0, least=0, most=selection.least)
        return detections(boxes, scores, lower, plus_one)
    chosen = region[kept], label[kept]
    return Selected(chosen[0], boxes[chosen], chosen[1], entry[kept], threshold)


def _best_class(boxes: Tensor, scores: Tensor, selection: Selection, plus_one: bool) -> Selected:
    best, label = scores.max(dim=1)  # (R,) each
    own = boxes[torch.arange(len(boxes), device=boxes.device), label]  # (R, 4)
    for threshold in selection.thresholds:
        kept = nms(own, best, threshold, plus_one)[: selection.most]
        if len(kept) >= selection.least:
            break
    return Selected(kept, own[kept], label[kept], best[kept], threshold)


def to_original(boxes: Tensor, sizes: Sequence[float], width: int, height: int) -> Tensor:
    """Boxes (M, 4) over scales (x, y), clipped to the picture: pixels of the original."""
    scaled = boxes * boxes.new_tensor([1 / sizes[0], 1 / sizes[1]] * 2)
    return clip(scaled, height, width, False)
