"""Convolutions for a processor: 3x3 by Winograd's algorithm, 1x1 as one matrix product.

Winograd's F(4x4, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015)
makes tiles of 4 x 4 outputs from 6 x 6 inputs with 36 products a channel instead of 144. In float32
the result is as near to the exact one as a direct convolution's, to a factor of about 2.

Legend: B images, C C' channels before and behind, h w height and width, d dilation, T tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

_TILES = 256  # at once: inputs, products and outputs of 512 channels are 19 MB each
_LEAST_CHANNELS = 32  # fewer are not worth the transforms
# one dimension's transforms, of points 0, 1, -1, 2, -2 and infinity
_INPUT: list[list[float]] = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]
_WEIGHT: list[list[float]] = [
    [1 / 4, 0, 0],
    [-1 / 6, -1 / 6, -1 / 6],
    [-1 / 6, 1 / 6, -1 / 6],
    [1 / 24, 1 / 12, 1 / 6],
    [1 / 24, -1 / 12, 1 / 6],
    [0, 0, 1],
]
_OUTPUT: list[list[float]] = [
    [1, 1, 1, 1, 1, 0],
    [0, 1, -1, 2, -2, 0],
    [0, 1, 1, 4, 4, 0],
    [0, 1, -1, 8, -8, 1],
]


def fast_kernel(weight: Tensor, groups: int) -> Tensor | None:
    """What `convolve` works with in place of a weight (C', C / groups, size, size).

    (C', C) of 1x1, (36, C, C') of 3x3, None where there is nothing faster.
    """
    outputs, inputs, size, _ = weight.shape
    if groups > 1:
        return None
    if size == 1:
        return weight.flatten(1).contiguous()
    if size != 3 or min(inputs, outputs) < _LEAST_CHANNELS:
        return None
    each = torch.tensor(_WEIGHT, dtype=torch.float64)  # (6, 3)
    both = torch.einsum("iy,ocyx,jx->ijco", each, weight.double(), each)  # (6, 6, C, C')
    return both.flatten(0, 1).to(weight.dtype).contiguous()


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    kernel: Tensor | None = None,
) -> Tensor:
    """(B, C, h, w) -> (B, C', h', w'), zeros around it; with a `fast_kernel` channels come last."""
    size = weight.shape[-1]
    if kernel is not None and size == 1:
        return _pointwise(x, kernel, bias, stride)
    if kernel is not None and stride == 1:
        return _winograd(x, kernel, bias, dilation)
    return F.conv2d(x, weight, bias, stride, dilation * (size // 2), dilation, groups)


def _pointwise(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    x = x[:, :, ::stride, ::stride].permute(0, 2, 3, 1)  # (B, h', w', C)
    y = F.linear(x.reshape(-1, x.shape[3]), kernel, bias)  # (B h' w', C')
    return y.view(*x.shape[:3], -1).permute(0, 3, 1, 2)


def _winograd(x: Tensor, kernel: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    """A dilated convolution is d x d plain ones, each over every d-th row and column."""
    d, (count, inputs, high, wide) = dilation, x.shape
    outputs = kernel.shape[2]
    rows, columns = (-(-side // (4 * d)) for side in (high, wide))  # tiles of one of the d x d
    border = [d, (4 * columns + 1) * d - wide, d, (4 * rows + 1) * d - high]
    padded = F.pad(x.permute(0, 2, 3, 1), [0, 0, *border])  # (B, h + ., w + ., C)
    image, row, column, channel = padded.stride()
    tiles = padded.as_strided(
        (6, 6, count, rows, d, columns, d, inputs),
        (d * row, d * column, image, 4 * d * row, row, 4 * d * column, column, channel),
    )
    into, out_of = _transform(_INPUT, x), _transform(_OUTPUT, x)  # (36, 36), (16, 36)
    shift = x.new_zeros(1) if bias is None else bias
    y = x.new_empty(count, rows, 4, d, columns, 4, d, outputs)
    for some, where in _portions(count, rows, columns * d * d):
        part = tiles[:, :, some, where]  # (6, 6, b, r, d, columns, d, C)
        shape = part.shape[2:7]
        values = into @ part.reshape(36, -1)  # (36, T C)
        products = torch.bmm(values.view(36, -1, inputs), kernel)  # (36, T, C')
        found = out_of @ products.view(36, -1)  # (16, T C')
        found = found.view(4, 4, *shape, outputs).permute(2, 3, 0, 4, 5, 1, 6, 7)
        torch.add(found, shift, out=y[some, where])  # (b, r, 4, d, columns, 4, d, C')
    whole = y.view(count, 4 * rows * d, 4 * columns * d, outputs)
    return whole[:, :high, :wide].permute(0, 3, 1, 2)  # (B, C', h, w)


def _portions(images: int, rows: int, tiles: int) -> Iterator[tuple[slice, slice]]:
    """Some images, and some rows of tiles, at a time; `tiles` are those of a row."""
    height = max(1, min(rows, _TILES // tiles))
    depth = max(1, _TILES // (tiles * rows))
    for image in range(0, images, depth):
        for row in range(0, rows, height):
            yield slice(image, image + depth), slice(row, row + height)


def _transform(one: list[list[float]], like: Tensor) -> Tensor:
    """A transform of both dimensions at once, (rows squared, 36)."""
    each = torch.tensor(one, dtype=like.dtype, device=like.device)
    return torch.kron(each, each)
