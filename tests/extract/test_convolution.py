"""A processor's convolutions and pooling against PyTorch's and torchvision's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torchvision.ops import roi_align

from extract.convolution import convolve, fast_kernel
from extract.detector_config import RoiConfig
from extract.roi import sampled_bins

# images, channels, channels behind, height, width, size, stride, dilation
SHAPES = {
    "regions": (70, 32, 32, 7, 7, 3, 1, 1),  # several portions of images
    "wide map": (1, 32, 64, 9, 300, 3, 1, 1),  # several portions of rows
    "smaller than a tile": (2, 32, 40, 1, 3, 3, 1, 1),
    "dilated": (2, 32, 33, 14, 14, 3, 1, 2),
    "dilated, uneven": (1, 48, 32, 13, 21, 3, 1, 2),
    "1x1": (2, 40, 33, 8, 9, 1, 1, 1),
    "1x1 with stride": (2, 40, 33, 8, 9, 1, 2, 1),
    "3x3 with stride": (1, 32, 32, 9, 8, 3, 2, 1),
}


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_fast_kernels_convolve(shape: tuple[int, ...], bias: bool) -> None:
    images, inputs, outputs, high, wide, size, stride, dilation = shape
    torch.manual_seed(0)
    x = torch.randn(images, inputs, high, wide)
    weight = torch.randn(outputs, inputs, size, size) / (inputs * size**2) ** 0.5
    shift = torch.randn(outputs) if bias else None
    kernel = fast_kernel(weight, 1)
    assert kernel is not None
    wanted = F.conv2d(
        x.double(),
        weight.double(),
        None if shift is None else shift.double(),
        stride,
        dilation * (size // 2),
        dilation,
    )
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        found = convolve(given, weight, shift, stride, dilation, 1, kernel)
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4)


def test_what_is_not_faster_stays() -> None:
    assert fast_kernel(torch.ones(64, 2, 3, 3), groups=32) is None
    assert fast_kernel(torch.ones(64, 3, 7, 7), groups=1) is None
    assert fast_kernel(torch.ones(16, 64, 3, 3), groups=1) is None


@torch.inference_mode()
@pytest.mark.parametrize("pooler", ["ROIAlign", "ROIAlignV2"])
@pytest.mark.parametrize(("resolution", "sampling", "every"), [(14, 2, 2), (14, 2, 1), (1, 3, 1)])
def test_sampled_bins_are_roi_align(
    pooler: str, resolution: int, sampling: int, every: int
) -> None:
    """Of boxes inside, at the borders, beyond them, and smaller than a cell."""
    torch.manual_seed(0)
    x = torch.randn(1, 5, 11, 17)
    corner = torch.rand(40, 2) * torch.tensor([260.0, 170.0])
    boxes = torch.cat((corner, corner + torch.rand(40, 2) * 120), dim=1)
    edges = [
        [0.0, 0, 272, 176],
        [0, 0, 3, 2],
        [265, 170, 272, 176],
        [5, 5, 5, 5],
        [-90, -90, 400, 9],
    ]
    boxes = torch.cat((boxes, torch.tensor(edges)))
    wanted = roi_align(
        x, [boxes], resolution, 1 / 16, sampling_ratio=sampling, aligned=pooler == "ROIAlignV2"
    )[:, :, ::every, ::every]
    config = replace(RoiConfig(), pooler=pooler, resolution=resolution, sampling=sampling)
    found = sampled_bins(x, boxes, config, 16, every)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)
