"""Anchors: the boxes that proposals start from.

Legend: A anchors of a cell, h w a map's height and width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_CAFFE_SIDE = 16  # of Caffe's base box, pixels


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Detectron2's anchors (A, 4) around a cell's upper left corner: for each size each ratio."""
    boxes = []
    for size in sizes:
        for ratio in ratios:  # height over width
            width = (size**2 / ratio) ** 0.5
            boxes.append((-width / 2, -ratio * width / 2, width / 2, ratio * width / 2))
    return torch.tensor(boxes, dtype=torch.float32)


def caffe_anchors(scales: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Anchors (A, 4) of py-faster-rcnn: rounded, and for each ratio each scale of a 16 px box."""
    centre, boxes = (_CAFFE_SIDE - 1) / 2, []
    for ratio in ratios:
        base = np.round(np.sqrt(_CAFFE_SIDE**2 / ratio))
        high = np.round(base * ratio)
        for scale in scales:
            x, y = (base * scale - 1) / 2, (high * scale - 1) / 2
            boxes.append((centre - x, centre - y, centre + x, centre + y))
    return torch.tensor(np.array(boxes), dtype=torch.float32)


def spread(anchors: Tensor, high: int, wide: int, stride: int) -> Tensor:
    """Anchors (A, 4) at every cell of a map, row by row: (h w A, 4)."""
    device = anchors.device
    y = torch.arange(0, high * stride, stride, dtype=torch.float32, device=device)  # (h,)
    x = torch.arange(0, wide * stride, stride, dtype=torch.float32, device=device)  # (w,)
    y, x = (v.reshape(-1) for v in torch.meshgrid(y, x, indexing="ij"))  # (h w,) each
    shifts = torch.stack((x, y, x, y), dim=1)  # (h w, 4)
    return (shifts[:, None] + anchors[None]).reshape(-1, 4)
