"""Upright images to features: grids, pyramids and regions in one pass over the network.

Legend: B images of a batch, S side of the input, C channels, h w a map's height and width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from torchvision.ops import roi_align

from extract.boxes import GivenBoxes
from extract.errors import ExtractError
from extract.imagenet import STRIDES, WIDTHS, EfficientNetLite, weights_file
from extract.images import read_image
from extract.prepared import PYRAMID, Prepared, cell_boxes, recorded
from extract.presets import Preset
from extract.records import ImageFeatures, Stream
from extract.sources import Source
from extract.views import WHOLE, check_view, view_of

LARGEST = 2048  # pixels of the input's side: a batch takes some GB from there on
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class Extractor:
    """A preset at work on a device; regions are extracted when boxes are given."""

    def __init__(self, name: str, preset: Preset, device: str, boxes: GivenBoxes | None) -> None:
        """Raises ExtractError when the preset cannot give features from these inputs."""
        _check(name, preset, boxes)
        widths = WIDTHS[preset.backbone]
        self.name, self.preset, self.boxes = name, preset, boxes
        self.device = torch.device(device)
        self.streams: dict[str, Stream] = {}
        self._grids = {"grids": preset.grid_levels} if preset.grids else {}  # stream -> its maps
        self._grids |= {s: (level,) for s, level in zip(PYRAMID, preset.pyramid, strict=False)}
        self._levels = {level for levels in self._grids.values() for level in levels}
        for stream, levels in self._grids.items():
            self.streams[stream] = Stream(sum(widths[k] for k in levels), preset.dtype)
        if boxes is not None:
            self._levels.update(preset.levels)
            self.streams["regions"] = Stream(sum(widths[k] for k in preset.levels), preset.dtype)

    @cached_property
    def network(self) -> EfficientNetLite:
        """The network, built when it is first needed."""
        network = EfficientNetLite(self.preset.backbone).to(self.device)
        return network.to(memory_format=torch.channels_last)

    def load(self) -> None:
        """Build the network now."""
        self.network  # noqa: B018

    @property
    def meta(self) -> dict[str, Any]:
        """What a cache records of this extractor."""
        libraries = ("torch", "torchvision", "timm", "pillow")
        versions = {**{k: version(k) for k in libraries}, "device": self.device.type}
        return recorded(self, weights_file(self.preset.backbone), versions)

    def cells(self, stream: str) -> int:
        """Rows of an image in a stream of grid cells; 0 where rows are regions."""
        levels = self._grids.get(stream)
        return 0 if levels is None else (self.preset.size // STRIDES[levels[-1]]) ** 2

    def prepare(self, source: Source) -> Prepared:
        """Read and resize one image; safe in threads. Raises ImageError."""
        preset = self.preset
        image = read_image(source.path, preset.images, preset.limits)
        boxes, extras = None, None
        if self.boxes is not None:
            boxes, extras = self.boxes.of(source.image_id, source.path, image.width, image.height)
        seen = np.ascontiguousarray(view_of(image.pixels, preset.view, source.image_id))
        resized = Image.fromarray(seen).resize(
            (preset.size, preset.size), _FILTERS[preset.interpolation]
        )
        values = np.asarray(resized, dtype=np.float32)  # (S, S, 3)
        mean, std = np.array(preset.mean, np.float32), np.array(preset.std, np.float32)  # (3,)
        values = (values - mean) / std
        return Prepared(
            source=source,
            width=image.width,
            height=image.height,
            pixels=torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))),  # (3, S, S)
            boxes=boxes,
            extras=extras,
        )

    @torch.inference_mode()
    def extract(self, images: Sequence[Prepared]) -> list[ImageFeatures]:
        """Features of at most `preset.batch` images.

        The network always sees a full batch, the last image repeated to fill it, so an image's
        numbers are the same whatever else is extracted with it.
        """
        filled = [*images, *[images[-1]] * (self.preset.batch - len(images))]
        batch = torch.stack([image.pixels for image in filled]).to(
            self.device, memory_format=torch.channels_last
        )  # (B, 3, S, S)
        exact = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        with exact:
            maps = self.network(batch, self._levels)
        return [self._features(image, maps, place) for place, image in enumerate(images)]

    def _features(self, image: Prepared, maps: dict[str, Tensor], place: int) -> ImageFeatures:
        found = ImageFeatures(
            image_id=image.source.image_id,
            width=image.width,
            height=image.height,
            streams={},
            file=image.source.file,
        )
        for stream, levels in self._grids.items():
            high, wide = (int(side) for side in maps[levels[-1]].shape[2:])
            averaged = [adaptive_avg_pool2d(maps[k][place], (high, wide)) for k in levels]
            cells = torch.cat(averaged)  # (C, h, w)
            found.streams[stream] = cells.flatten(1).T.cpu().numpy()  # (h w, C)
            found.boxes[stream] = cell_boxes(high, wide, image.width, image.height)
            found.grid_shape[stream] = (high, wide)
        if image.boxes is not None:
            found.streams["regions"] = self._regions(image, maps, place)
            found.boxes["regions"] = image.boxes
            found.extras["regions"] = image.extras or {}
        return found

    def _regions(self, image: Prepared, maps: dict[str, Tensor], place: int) -> np.ndarray:
        """(N, sum of the levels' widths): RoIAlign on each level, averaged over its bins."""
        preset = self.preset
        scale = np.array([preset.size / image.width, preset.size / image.height] * 2)
        scaled = torch.from_numpy((image.boxes * scale).astype(np.float32)).to(
            self.device
        )  # (N, 4)
        pooled = [
            roi_align(
                maps[level][place : place + 1].contiguous(),
                [scaled],
                output_size=preset.region_bins,
                spatial_scale=1 / STRIDES[level],
                sampling_ratio=preset.region_samples,
                aligned=True,
            ).mean(dim=(2, 3))  # (N, C)
            for level in preset.levels
        ]
        return torch.cat(pooled, dim=1).cpu().numpy()


def _check(name: str, preset: Preset, boxes: GivenBoxes | None) -> None:
    """Raise ExtractError when the preset cannot give features from these inputs."""
    if preset.backbone not in WIDTHS:
        raise ExtractError(f"backbone {preset.backbone!r}, wanted one of {', '.join(WIDTHS)}")
    named = (*preset.levels, *preset.pyramid, *preset.grid_levels)
    unknown = [level for level in named if level not in STRIDES]
    if unknown:
        raise ExtractError(f"levels {unknown}, wanted some of {', '.join(STRIDES)}")
    strides = [STRIDES[level] for level in preset.pyramid]
    if len(strides) not in (0, len(PYRAMID)) or strides != sorted(strides, reverse=True):
        raise ExtractError(
            f"pyramid is {', '.join(preset.pyramid)}, wanted two maps, the coarse one first"
        )
    strides = [STRIDES[level] for level in preset.grid_levels]
    if not strides or max(strides) != strides[-1]:
        raise ExtractError(
            f"grid_levels is {', '.join(preset.grid_levels)}, wanted the coarsest map last"
        )
    if preset.interpolation not in _FILTERS:
        raise ExtractError(
            f"interpolation is {preset.interpolation!r}, wanted one of {', '.join(_FILTERS)}"
        )
    check_view(preset.view)
    if preset.view != WHOLE and boxes is not None:
        raise ExtractError(
            f"view is {preset.view!r}, but boxes are places in the whole picture: leave out"
            " --boxes or the view"
        )
    if preset.size % 32 or not 64 <= preset.size <= LARGEST:
        raise ExtractError(f"size is {preset.size}, wanted a multiple of 32 from 64 to {LARGEST}")
    if not preset.grids and not preset.pyramid and boxes is None:
        raise ExtractError(f"preset {name} extracts given boxes only: add --boxes BOXES.json")
