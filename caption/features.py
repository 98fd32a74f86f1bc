"""A batch of image features as tensors.

B batch, N rows (regions or grid cells, padded to the longest of the batch), D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from caption.errors import CaptionError
from extract.cache import ImageFeatures


@dataclass(frozen=True, kw_only=True)
class Features:
    """Streams of rows with their masks and boxes for B images."""

    rows: dict[str, Tensor]  # stream -> (B, N, D) float32, zero where padded
    mask: dict[str, Tensor]  # stream -> (B, N) bool, True on real rows
    boxes: dict[
        str, Tensor
    ]  # stream -> (B, N, 4) x1 y1 x2 y2 in pixels, where all images have them
    sizes: Tensor  # (B, 2) width and height of the upright original in pixels
    grid_shape: dict[str, tuple[tuple[int, int], ...]]  # stream -> (height, width) per image

    def located(self, stream: str) -> tuple[Tensor, Tensor]:
        """Boxes (B, N, 4) and image sizes (B, 2), for models that use places.

        Raises CaptionError where a box or the size of an image is not known.
        """
        if stream not in self.boxes or not bool((self.sizes > 0).all()):
            lacking = "boxes" if stream not in self.boxes else "known width and height"
            raise CaptionError(
                f"the model uses the places of the stream {stream!r}, and some images have no"
                f" {lacking}; extract them again with boxes, import them with --sizes, or choose a"
                " model without places (pipeline train --recipe RECIPE --show lists the settings)"
            )
        return self.boxes[stream], self.sizes

    def to(self, device: torch.device) -> Features:
        """The same batch on another device."""

        def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.to(device) for name, tensor in tensors.items()}

        return Features(
            rows=moved(self.rows),
            mask=moved(self.mask),
            boxes=moved(self.boxes),
            sizes=self.sizes.to(device),
            grid_shape=self.grid_shape,
        )


def collate(images: Sequence[ImageFeatures], streams: Sequence[str]) -> Features:
    """Pad images to one batch. Raises CaptionError on an image without rows in a stream."""
    rows, masks, boxes, shapes = {}, {}, {}, {}
    for stream in streams:
        counts = []
        for image in images:
            if stream not in image.streams or len(image.streams[stream]) == 0:
                raise CaptionError(f"image {image.image_id} has no rows in stream {stream!r}")
            counts.append(len(image.streams[stream]))
        longest, width = max(counts), images[0].streams[stream].shape[1]
        padded = torch.zeros(len(images), longest, width)  # (B, N, D)
        corners = np.zeros((len(images), longest, 4), dtype=np.float32)  # (B, N, 4)
        for place, (image, count) in enumerate(zip(images, counts, strict=True)):
            # torch turns float16 into float32 ten times faster than NumPy
            padded[place, :count] = torch.from_numpy(image.streams[stream])
            if stream in image.boxes:
                corners[place, :count] = image.boxes[stream]
        rows[stream] = padded
        if all(stream in image.boxes for image in images):
            boxes[stream] = torch.from_numpy(corners)
        masks[stream] = torch.arange(longest) < torch.tensor(counts)[:, None]  # (B, N)
        if all(stream in image.grid_shape for image in images):
            shapes[stream] = tuple(
                (int(image.grid_shape[stream][0]), int(image.grid_shape[stream][1]))
                for image in images
            )
    sizes = torch.tensor(
        [(image.width, image.height) for image in images], dtype=torch.float32
    )  # (B, 2)
    return Features(rows=rows, mask=masks, boxes=boxes, sizes=sizes, grid_shape=shapes)
