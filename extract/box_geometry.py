"""Boxes `x1 y1 x2 y2`: decoding what a network predicts, clipping, size.

`plus_one` is Caffe's convention: a box holds its last pixel, so its width is x2 - x1 + 1.
Legend: N boxes, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MOST_GROWTH = math.log(1000 / 16)  # of a side, as a logarithm


def decode(deltas: Tensor, boxes: Tensor, weights: Sequence[float], plus_one: bool) -> Tensor:
    """Boxes (N, 4) moved and resized by deltas (N, 4 K) over weights: (N, 4 K)."""
    extra = 1.0 if plus_one else 0.0
    sides = boxes[:, 2:] - boxes[:, :2] + extra  # (N, 2)
    centres = boxes[:, :2] + 0.5 * sides  # (N, 2)
    moved = deltas.reshape(len(deltas), deltas.shape[1] // 4, 4) / deltas.new_tensor(
        list(weights)
    )  # (N, K, 4)
    centre = moved[..., :2] * sides[:, None] + centres[:, None]  # (N, K, 2)
    half = 0.5 * torch.exp(moved[..., 2:].clamp(max=_MOST_GROWTH)) * sides[:, None]  # (N, K, 2)
    return torch.cat((centre - half, centre + half), dim=-1).flatten(1)


def clip(boxes: Tensor, height: float, width: float, plus_one: bool) -> Tensor:
    """Boxes (..., 4) cut at the borders of an image."""
    limits = boxes.new_tensor([width, height, width, height]) - float(plus_one)  # (4,)
    return torch.minimum(boxes.clamp(min=0), limits)


def larger_than(boxes: Tensor, side: float, plus_one: bool) -> Tensor:
    """Which of the boxes (N, 4) have both sides longer: (N,) bool."""
    sides = boxes[:, 2:] - boxes[:, :2]  # (N, 2)
    if plus_one:
        return (sides > 0).all(dim=1) & (sides + 1 > side).all(dim=1)
    return (sides > side).all(dim=1)
