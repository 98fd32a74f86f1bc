"""What passes between reading images and the networks, whatever network it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from extract.boxes import GivenBoxes
from extract.imagenet import sha256_of
from extract.images import ImageLimits, ImageRules
from extract.records import ImageFeatures, Stream
from extract.sources import Source

PYRAMID = ("pyramid_high", "pyramid_low")  # the coarse map's stream, then the fine one's


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An image ready for the network."""

    source: Source
    width: int  # of the upright original
    height: int
    pixels: Tensor  # (3, H, W) float32, normalised
    boxes: np.ndarray | None = None  # (N, 4) given boxes in pixels of the original
    extras: dict[str, np.ndarray] | None = None  # what is known of each box


class FeaturePreset(Protocol):
    """What any preset says."""

    @property
    def batch(self) -> int:
        """Images at once."""

    @property
    def images(self) -> ImageRules:
        """How files become pixels."""

    @property
    def limits(self) -> ImageLimits:
        """Which files are taken."""

    def settings(self) -> dict[str, Any]:
        """All that alters features, as plain values."""


class FeatureExtractor(Protocol):
    """A preset at work: what the extraction loop needs of it."""

    name: str
    boxes: GivenBoxes | None
    streams: dict[str, Stream]

    @property
    def preset(self) -> FeaturePreset:
        """Its preset."""

    @property
    def meta(self) -> dict[str, Any]:
        """What a cache records of it."""

    def load(self) -> None:
        """Build the network, unless it is there. Raises ExtractError when weights do not fit."""

    def cells(self, stream: str) -> int:
        """Rows of an image in a stream, about; 0 where given boxes decide."""

    def prepare(self, source: Source) -> Prepared:
        """Read one image; safe in threads. Raises ImageError."""

    def extract(self, images: Sequence[Any]) -> list[ImageFeatures]:
        """Features of at most `preset.batch` images of one shape, as `prepare` gave them."""


def recorded(
    extractor: FeatureExtractor, weights: Path, versions: Mapping[str, str]
) -> dict[str, Any]:
    """What a cache records of an extractor: all that alters features, and where it came from."""
    meta: dict[str, Any] = {
        "preset": extractor.name,
        "settings": extractor.preset.settings(),
        "weights": {"file": weights.name, "sha256": sha256_of(weights)},
        "limits": asdict(extractor.preset.limits),
        "versions": dict(versions),
    }
    if extractor.boxes is not None:
        boxes = extractor.boxes
        meta["boxes"] = {"file": boxes.path.name, "sha256": boxes.sha256}
    return meta


def cell_boxes(
    high: int, wide: int, width: int, height: int, reach: tuple[float, float] | None = None
) -> np.ndarray:
    """Boxes (high wide, 4) of a grid's cells, row by row, in pixels of the original.

    `reach` says how far the cells go, (x, y), where the map is larger than the picture: they
    are cut at its border.
    """
    right, low = reach or (width, height)
    x = np.linspace(0, right, wide + 1, dtype=np.float32).clip(max=width)
    y = np.linspace(0, low, high + 1, dtype=np.float32).clip(max=height)
    corners = [(x[j], y[i], x[j + 1], y[i + 1]) for i in range(high) for j in range(wide)]
    return np.array(corners, dtype=np.float32)
