"""From an upright picture to a detector's input, as each of the official programs does it.

Legend: H W the picture's height and width, H' W' the input's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from extract.detector_config import PixelConfig


@dataclass(frozen=True)
class NetworkInput:
    """One image, resized, normalised and padded, and how it was resized."""

    pixels: Tensor  # (3, H', W') float32, blue green red
    height: int  # without the padding
    width: int
    scale_x: float  # resized size over the original's
    scale_y: float


def network_input(rgb: np.ndarray, config: PixelConfig) -> NetworkInput:
    """A picture (H, W, 3) uint8 RGB as the network wants it."""
    high, wide = rgb.shape[:2]
    mean, std = (torch.tensor(v)[:, None, None] for v in (config.mean, config.std))
    if config.resize == "pillow":
        values = torch.from_numpy(pillow_resized(rgb, config)).permute(2, 0, 1)  # (3, H', W')
        pixels = (values.float() - mean) / std
        scale_x, scale_y = pixels.shape[2] / wide, pixels.shape[1] / high
    else:
        scale_x = scale_y = opencv_scale(high, wide, config)
        bgr = rgb[:, :, ::-1].astype(np.float32)  # (H, W, 3)
        if config.resize == "opencv-after-mean":
            bgr = (bgr - np.array(config.mean, np.float64)).astype(np.float32)
            mean = torch.zeros_like(mean)
        values = torch.from_numpy(opencv_bilinear(bgr, scale_x)).permute(2, 0, 1)  # (3, H', W')
        pixels = (values - mean) / std
    height, width = int(pixels.shape[1]), int(pixels.shape[2])
    return NetworkInput(
        pixels=padded(pixels, config.divisible),
        height=height,
        width=width,
        scale_x=scale_x,
        scale_y=scale_y,
    )


def padded(pixels: Tensor, divisible: int) -> Tensor:
    """(3, H', W') with zeros at the right and the bottom up to a multiple of `divisible`."""
    if divisible <= 1:
        return pixels.contiguous()
    down, right = (-side % divisible for side in pixels.shape[1:])
    return torch.nn.functional.pad(pixels, (0, right, 0, down))


def pillow_resized(rgb: np.ndarray, config: PixelConfig) -> np.ndarray:
    """(H, W, 3) uint8 RGB -> (H', W', 3) uint8, blue green red: detectron2's shortest edge."""
    high, wide = rgb.shape[:2]
    scale = config.min_size / min(high, wide)
    new = [config.min_size, scale * wide] if high < wide else [scale * high, config.min_size]
    if max(new) > config.max_size:
        shrink = config.max_size / max(new)
        new = [side * shrink for side in new]
    height, width = (int(side + 0.5) for side in new)
    image = Image.fromarray(np.ascontiguousarray(rgb[:, :, ::-1]))
    return np.array(image.resize((width, height), Image.Resampling.BILINEAR))


def opencv_scale(high: int, wide: int, config: PixelConfig) -> float:
    """The factor that bottom-up attention resizes both sides by."""
    scale = config.min_size / min(high, wide)
    if np.round(scale * max(high, wide)) > config.max_size:
        scale = config.max_size / max(high, wide)
    return float(scale)


def opencv_bilinear(values: np.ndarray, scale: float) -> np.ndarray:
    """`cv2.resize(values, None, fx=scale, fy=scale)` of float32 (H, W, C): not antialiased."""
    high, wide = values.shape[:2]
    left, right, x = _taps(wide, round(wide * scale), scale)
    upper, lower, y = _taps(high, round(high * scale), scale)
    x, y = x[:, None], y[:, None, None]  # (W', 1) and (H', 1, 1)
    rows = np.unique(np.concatenate((upper, lower)))  # of the picture, those that are needed
    across = _between(values[rows][:, left], values[rows][:, right], x)  # (rows, W', C)
    return _between(
        across[np.searchsorted(rows, upper)], across[np.searchsorted(rows, lower)], y
    )  # (H', W', C)


def _between(a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """a + weight (b - a) in float32, multiplied and added in one step as OpenCV does."""
    step = np.multiply(b - a, weight, dtype=np.float64)  # exact
    step += a
    return step.astype(np.float32)


def _taps(size: int, new: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of `new` places its two neighbours among `size` and the second one's weight."""
    place = (np.arange(new) + 0.5) / scale - 0.5  # (new,)
    first = np.floor(place).astype(np.int64)
    weight = (place - first).astype(np.float32)
    weight[(first < 0) | (first >= size - 1)] = 0
    first = first.clip(0, size - 1)
    return first, np.minimum(first + 1, size - 1), weight
