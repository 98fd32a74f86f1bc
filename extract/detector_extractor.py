"""Upright images through a detector: regions, grids and pyramids in one pass over its backbone.

Legend: B images of a batch, H W the input's height and width, C channels, h w a map's, N regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from extract.box_selection import Selected, foreground, select, to_original
from extract.boxes import GivenBoxes
from extract.checkpoint import fill, load_detector, read_checkpoint, resnet_names
from extract.detector import Detector
from extract.detector_presets import DetectorPreset
from extract.errors import ExtractError, WeightsError
from extract.images import read_image
from extract.prepared import PYRAMID, Prepared, cell_boxes, recorded
from extract.records import ImageFeatures, Stream
from extract.resize import NetworkInput, network_input
from extract.roi import RegionOutputs
from extract.rpn import Frame, Proposals
from extract.sources import Source


@dataclass(frozen=True, kw_only=True)
class PreparedInput(Prepared):
    """An image ready for a detector."""

    given: NetworkInput

    @property
    def frame(self) -> Frame:
        return Frame(self.given.height, self.given.width, self.given.scale_x)


class DetectorExtractor:
    """A detector's preset at work on a device; regions are chosen by its rule, or given."""

    def __init__(
        self,
        name: str,
        preset: DetectorPreset,
        device: str,
        boxes: GivenBoxes | None,
        weights: Path,
        kind: type[Detector] = Detector,
        remedy: str = "give another file as --weights",
    ) -> None:
        """Raises ExtractError when the preset gives no features.

        `kind` is what builds the network: our own, or detectron2's behind the same methods.
        `remedy` is what to type when the weights turn out not to fit.
        """
        if boxes is not None and not preset.regions:
            raise ExtractError(
                f"--boxes is given, but preset {name} makes no regions: add -o regions=true"
            )
        self.name, self.preset, self.boxes, self.weights = name, preset, boxes, weights
        self.device = torch.device(device)
        self.kind, self.remedy = kind, remedy
        self.streams: dict[str, Stream] = {}
        config = preset.detector
        if preset.regions:
            pooled = preset.region_feature == "pooled"
            width = config.fc_inputs if pooled else config.feature_width
            self.streams["regions"] = Stream(width, preset.dtype)
        if preset.grids:
            self.streams["grids"] = Stream(config.map_channels("res5"), preset.dtype)
        for stream, level in zip(PYRAMID, preset.pyramid, strict=False):
            self.streams[stream] = Stream(config.map_channels(level), preset.dtype)
        if not self.streams:
            raise ExtractError(f"preset {name}: regions, grids and pyramid are all off")

    @cached_property
    def detector(self) -> Detector:
        """The network, built when it is first needed. Raises ExtractError as `build` does."""
        try:
            built = build(self.preset, self.weights, self.kind)
        except WeightsError as error:
            raise WeightsError(f"{error}; {self.remedy}") from error
        return built.to(self.device).arrange(self.device)

    def load(self) -> None:
        """Build the network now."""
        self.detector  # noqa: B018

    @cached_property
    def meta(self) -> dict[str, Any]:
        """What a cache records of this extractor."""
        versions = {
            **{k: version(k) for k in ("torch", "torchvision", "pillow")},
            **self.kind.library_versions(),
            "device": self.device.type,
        }
        return recorded(self, self.weights, versions)

    def cells(self, stream: str) -> int:
        """Rows of an image in a stream, at most; of maps as they are, for a 4 x 3 picture."""
        preset, pixels = self.preset, self.preset.detector.pixels
        if stream == "regions":
            return preset.selection.most if self.boxes is None else 0
        side = preset.grid_cells
        if stream in PYRAMID:
            side = preset.pyramid_cells[PYRAMID.index(stream)]
        if side:
            return side**2
        return -(-pixels.min_size // 32) * -(-pixels.min_size * 4 // 3 // 32)

    def prepare(self, source: Source) -> PreparedInput:
        """Read and resize one image; safe in threads. Raises ImageError."""
        image = read_image(source.path, self.preset.images, self.preset.limits)
        boxes, extras = None, None
        if self.boxes is not None:
            boxes, extras = self.boxes.of(source.image_id, source.path, image.width, image.height)
        given = network_input(image.pixels, self.preset.detector.pixels)
        return PreparedInput(
            source=source,
            width=image.width,
            height=image.height,
            pixels=given.pixels,
            boxes=boxes,
            extras=extras,
            given=given,
        )

    @torch.inference_mode()
    def extract(self, images: Sequence[PreparedInput]) -> list[ImageFeatures]:
        """Features of at most `preset.batch` images of one shape.

        The network always sees a full batch, the last image repeated to fill it, so an image's
        numbers are the same whatever else is extracted with it.
        """
        filled = [*images, *[images[-1]] * (self.preset.batch - len(images))]
        batch = torch.stack([image.pixels for image in filled])  # (B, 3, H, W)
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        batch = batch.to(self.device, non_blocking=True)
        exact = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        with exact:
            maps = self.detector.maps(batch, self.preset.maps)
            if self.preset.grids:
                maps["grid"] = self.detector.grid(maps)
            proposals: list[Proposals] = []
            if self.preset.regions and self.boxes is None:
                frames = [image.frame for image in images]
                proposals = self.detector.proposals(maps, frames)
            return [
                self._features(image, maps, place, proposals[place] if proposals else None)
                for place, image in enumerate(images)
            ]

    def _features(
        self,
        image: PreparedInput,
        maps: dict[str, Tensor],
        place: int,
        proposals: Proposals | None,
    ) -> ImageFeatures:
        found = ImageFeatures(
            image_id=image.source.image_id,
            width=image.width,
            height=image.height,
            streams={},
            file=image.source.file,
        )
        if self.preset.grids:
            self._add_grid(found, "grids", maps["grid"][place], self.preset.grid_cells, image, 32)
        for stream, level, side in zip(
            PYRAMID, self.preset.pyramid, self.preset.pyramid_cells, strict=False
        ):
            stride = self.preset.built.map_stride(level)
            self._add_grid(found, stream, maps[level][place], side, image, stride)
        if proposals is not None:
            self._add_chosen(found, image, maps, place, proposals)
        elif image.boxes is not None:
            self._add_given(found, image, maps, place)
        return found

    def _add_grid(
        self,
        found: ImageFeatures,
        stream: str,
        x: Tensor,
        side: int,
        image: PreparedInput,
        stride: int,
    ) -> None:
        """A map (C, h, w) as rows, pooled to `side` cells a side unless 0."""
        x = x.float()
        reach = (
            x.shape[2] * stride / image.given.scale_x,
            x.shape[1] * stride / image.given.scale_y,
        )
        if side:
            x = F.adaptive_avg_pool2d(x, side)  # (C, side, side)
        high, wide = int(x.shape[1]), int(x.shape[2])
        found.streams[stream] = x.flatten(1).T.cpu().numpy()  # (h w, C)
        found.boxes[stream] = cell_boxes(high, wide, image.width, image.height, reach)
        found.grid_shape[stream] = (high, wide)

    def _add_chosen(
        self,
        found: ImageFeatures,
        image: PreparedInput,
        maps: dict[str, Tensor],
        place: int,
        proposals: Proposals,
    ) -> None:
        config = self.preset.detector
        outputs = self.detector.regions(maps, place, proposals.boxes)
        chosen = select(
            outputs,
            proposals.boxes,
            image.frame,
            config.roi,
            self.preset.selection,
            config.plus_one,
        )
        scales = (image.given.scale_x, image.given.scale_y)
        boxes = to_original(chosen.boxes, scales, image.width, image.height)  # (N, 4)
        self._add_regions(found, outputs, chosen, boxes.cpu().numpy(), {})

    def _add_given(
        self, found: ImageFeatures, image: PreparedInput, maps: dict[str, Tensor], place: int
    ) -> None:
        """Regions at the given boxes, with the best class of each."""
        assert image.boxes is not None
        scale = np.array([image.given.scale_x, image.given.scale_y] * 2)
        boxes = torch.from_numpy((image.boxes * scale).astype(np.float32)).to(self.device)
        outputs = self.detector.regions(maps, place, boxes)
        best = foreground(outputs.logits, self.preset.detector.roi.background_first).max(dim=1)
        every = torch.arange(len(boxes), device=boxes.device)
        chosen = Selected(every, boxes, best.indices, best.values, 0.0)
        self._add_regions(found, outputs, chosen, image.boxes, image.extras or {})

    def _add_regions(
        self,
        found: ImageFeatures,
        outputs: RegionOutputs,
        chosen: Selected,
        boxes: np.ndarray,
        extras: dict[str, np.ndarray],
    ) -> None:
        """Rows, boxes (N, 4) in pixels of the original, and what is known of them."""
        features = outputs.pooled if self.preset.region_feature == "pooled" else outputs.features
        assert features is not None
        found.streams["regions"] = features[chosen.ids].cpu().numpy()  # (N, width)
        found.boxes["regions"] = boxes
        known = {
            "objects": chosen.classes.cpu().numpy().astype(np.int32),
            "scores": chosen.scores.cpu().numpy(),
        }
        if outputs.attributes is not None:
            attributes = outputs.attributes[chosen.ids]  # (N, attributes)
            best = best_attributes(attributes, self.preset.detector.roi.attribute_none)
            known["attributes"] = best[0].cpu().numpy().astype(np.int32)
            known["attribute_scores"] = best[1].cpu().numpy()
        found.extras["regions"] = known | extras


def best_attributes(logits: Tensor, none: str) -> tuple[Tensor, Tensor]:
    """The best attribute of each region and its probability, (N,) each; none does not count.

    bottom-up-attention.pytorch takes it out after the softmax, py-bottom-up-attention before.
    """
    if none == "last":
        shares = logits[:, :-1].softmax(dim=1)  # (N, attributes)
    else:
        shares = logits.softmax(dim=1)[:, 1 if none == "first" else 0 :]
    best = shares.max(dim=1)
    return best.indices, best.values


def build(preset: DetectorPreset, weights: Path, kind: type[Detector] = Detector) -> Detector:
    """The preset's detector with a checkpoint's weights. Raises WeightsError."""
    detector = kind(preset.built)
    tensors = read_checkpoint(weights)
    if any(name.startswith(("backbone.", "module.backbone.")) for name in tensors):
        load_detector(detector, tensors, weights)
    elif preset.detector.roi.head == "none":  # a classifier's file
        fill(detector.backbone, resnet_names(tensors, weights), weights)
    else:
        shown = ", ".join(list(tensors)[:4])
        raise WeightsError(f"{weights}: holds {shown}, wanted a detector's names, backbone. ...")
    detector.fold()
    detector.set_precision(getattr(torch, preset.precision))
    return detector
