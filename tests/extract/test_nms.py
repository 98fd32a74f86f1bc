"""Suppression by class equals a loop over classes, box for box."""

from __future__ import annotations

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from extract import nms as module
from extract.box_selection import best_kept_scores, confident, detections
from extract.detector_config import Selection
from extract.nms import nms, nms_by_class


def boxes_of(generator: torch.Generator, count: int, size: float = 100.0) -> Tensor:
    corner = torch.rand(count, 2, generator=generator) * size
    return torch.cat((corner, corner + torch.rand(count, 2, generator=generator) * size), dim=1)


def looped(boxes: Tensor, scores: Tensor, classes: Tensor, threshold: float) -> Tensor:
    kept = [
        places[torchvision.ops.nms(boxes[places], scores[places], threshold)]
        for places in ((classes == c).nonzero()[:, 0] for c in classes.unique())
    ]
    found = torch.cat(kept) if kept else classes
    return found[torch.sort(scores[found], descending=True, stable=True).indices]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 120),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.3, 0.5, 0.7]),
    st.integers(0, 10**6),
)
def test_equals_the_loop(count: int, classes: int, threshold: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    half = boxes_of(generator, count - count // 2)
    boxes = torch.cat((half, half[: count // 2]))  # equal ones, so overlaps of exactly 1
    scores = torch.randperm(count, generator=generator).float()
    label = torch.randint(classes, (count,), generator=generator)
    found = nms_by_class(boxes, scores, label, threshold)
    assert found.tolist() == looped(boxes, scores, label, threshold).tolist()


def test_far_classes_lose_no_precision() -> None:
    """Class 1,599 of a picture 1,000 pixels wide, with overlaps a hair above the threshold."""
    boxes = torch.tensor([[0, 0, 10, 10], [0, 3.3, 10, 13.3], [0, 3.4, 10, 13.4]])
    over = float(torchvision.ops.box_iou(boxes[:1], boxes[1:2]))
    scores, classes = torch.tensor([0.9, 0.8, 0.7]), torch.full((3,), 1599)
    kept = nms_by_class(boxes, scores, classes, over - 1e-4)
    assert kept.tolist() == looped(boxes, scores, classes, over - 1e-4).tolist()
    assert 1 not in kept.tolist() and 1 in nms_by_class(boxes, scores, classes, over).tolist()


def test_pairs_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    boxes, scores = boxes_of(generator, 200), torch.rand(200, generator=generator)
    classes = torch.randint(4, (200,), generator=generator)
    whole = nms_by_class(boxes, scores, classes, 0.4)
    monkeypatch.setattr(module, "_PAIRS", 150)
    assert nms_by_class(boxes, scores, classes, 0.4).tolist() == whole.tolist()


def test_caffes_boxes_hold_their_last_pixel_and_go_at_equality() -> None:
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.0, 5.0, 9.0, 9.0]])  # 100 and 50 pixels
    scores = torch.tensor([0.9, 0.8])
    assert nms(boxes, scores, 0.5, plus_one=True).tolist() == [0]
    assert nms(boxes, scores, 0.501, plus_one=True).tolist() == [0, 1]
    classes = torch.zeros(2, dtype=torch.long)
    assert nms_by_class(boxes, scores, classes, 0.5, plus_one=True).tolist() == [0]
    assert nms_by_class(boxes, scores, classes, 0.501, plus_one=True).tolist() == [0, 1]
    touching = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 5.0, 10.0, 10.0]])  # overlap 0.5
    assert nms(touching, scores, 0.5).tolist() == [0, 1]


@pytest.mark.parametrize("sharpness", [1.0, 8.0])  # few, many confident regions
@pytest.mark.parametrize("limits", [(10, 100), (36, 36), (5, 16)])
def test_confident_proposals_equal_the_loop(sharpness: float, limits: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    boxes = boxes_of(generator, 80, 60.0)
    scores = (torch.randn(80, 40, generator=generator) * sharpness).softmax(dim=1)
    best = torch.zeros(80)
    for label in range(40):
        kept = torchvision.ops.nms(boxes, scores[:, label], 0.3)
        best[kept] = torch.maximum(best[kept], scores[kept, label])
    rule = Selection(least=limits[0], most=limits[1])
    found = best_kept_scores(boxes, scores, rule, plus_one=False)
    assert confident(found, rule).tolist() == confident(best, rule).tolist()
    sure = best >= rule.score
    assert torch.equal(found[sure], best[sure])


@pytest.mark.parametrize(("score", "least", "count"), [(0.2, 1, 2), (0.2, 4, 4), (0.9, 0, 0)])
def test_too_few_detections_are_filled_up(score: float, least: int, count: int) -> None:
    """DLCT's rule: those above the score, or the best few whatever their score."""
    boxes = torch.tensor([[0.0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]])  # three apart
    scores = torch.tensor([[0.8, 0.05], [0.1, 0.3], [0.06, 0.0]])  # (3, 2)
    rule = Selection(rule="detections", score=score, least=least, thresholds=(0.5,))
    found = detections(boxes[:, None].expand(-1, 2, -1), scores, rule, False)
    assert found.ids.tolist() == [0, 1, 1, 2][:count]
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
