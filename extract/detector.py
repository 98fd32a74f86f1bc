"""Two-stage detectors: pictures to maps, proposals, and features of regions.

The parameters have detectron2's names, so that public checkpoints load by name.
Legend: B images, C channels, H W the input's height and width, h w a map's, R regions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from extract.detector_config import DetectorConfig
from extract.fpn import FeaturePyramid
from extract.resnet import Conv, PlainConv, ResNet
from extract.roi import RegionHeads, RegionOutputs
from extract.rpn import Frame, ProposalNetwork, Proposals

T = TypeVar("T")
# regions at once, by the kind of head: 51 MB when pooled to 14 x 14 x 1024, 26 MB to 7 x 7 x 256
ROI_CHUNKS = {"res5": 64, "fc": 512}


class Detector(nn.Module):
    """A detector for inference; `proposals` and `regions` work on one image of a batch."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone: ResNet | FeaturePyramid = (
            FeaturePyramid(config.resnet, config.fpn_channels)
            if config.fpn_channels
            else ResNet(config.resnet)
        )
        self.proposal_generator: ProposalNetwork | None = None
        self.roi_heads: RegionHeads | None = None
        if config.roi.head != "none":
            self.proposal_generator = ProposalNetwork(config)
            self.roi_heads = RegionHeads(config)
        self.kind = torch.float32
        self.layout: torch.memory_format = torch.contiguous_format  # of the backbone
        self.eval().requires_grad_(False)

    @staticmethod
    def library_versions() -> dict[str, str]:
        """Of other libraries that make the numbers."""
        return {}

    def maps(self, images: Tensor, wanted: Collection[str] | None = None) -> dict[str, Tensor]:
        """(B, 3, H, W) -> maps by name, (B, C, h, w) each: of a pyramid those that are `wanted`.

        Of pre-activated networks `res4` comes with the norm and activation that res5 begins with,
        `res4_raw` without.
        """
        images = images.to(self.kind).contiguous(memory_format=self.layout)
        given = () if isinstance(self.backbone, ResNet) else (wanted,)
        found = [self.backbone(part, *given) for part in _parts(images)]
        maps: dict[str, Tensor] = found[0]
        if len(found) > 1:
            maps = {name: torch.cat([part[name] for part in found]) for name in maps}
        if self.config.resnet.pre_activation and self.roi_heads and self.roi_heads.res5:
            maps["res4_raw"] = maps["res4"]
            maps["res4"] = F.relu_(self.roi_heads.res5[0].norm(maps["res4"]))  # type: ignore[operator]
        return maps

    def grid(self, maps: dict[str, Tensor]) -> Tensor:
        """The last map of stride 32, (B, D, h, w), whatever dilation detection works with."""
        heads = self.roi_heads
        if heads is not None and heads.res5 is not None:
            return torch.cat([heads.last_map(part, dilation=1) for part in _parts(maps["res4"])])
        if self.config.resnet.res5_dilation == 1:
            return maps["res5"]
        network = self.backbone.bottom_up if self.config.fpn_channels else self.backbone
        stage = network.get_submodule("res5")  # type: ignore[union-attr]
        return torch.cat([stage(part, 1) for part in _parts(maps["res4"])])

    def proposals(self, maps: dict[str, Tensor], frames: list[Frame]) -> list[Proposals]:
        """The proposals of each image of a batch."""
        network = self._network(self.proposal_generator)
        found = []
        for place, frame in enumerate(frames):
            used = {name: maps[name][place : place + 1] for name in self.config.rpn.maps}
            found.append(network.select(network.predict(used), 0, frame))
        return found

    def regions(self, maps: dict[str, Tensor], place: int, boxes: Tensor) -> RegionOutputs:
        """What the boxes (R, 4), in pixels of the input, of the image at `place` are."""
        heads = self._network(self.roi_heads)
        used = {name: maps[name][place : place + 1] for name in self.config.roi.maps}
        return heads(used, boxes, ROI_CHUNKS[self.config.roi.head])

    def fold(self) -> Detector:
        """Merge norms into convolutions, for speed; the numbers stay within 1e-6 of a map's."""
        self.backbone.fold()
        if self.roi_heads is not None:
            self.roi_heads.fold()
        return self

    def arrange(self, device: torch.device) -> Detector:
        """Lay weights out by channels last; on a processor take its faster kernels, in float32.

        `fold` and `set_precision` come before.
        """
        fast = device.type == "cpu" and self.kind == torch.float32
        self.layout = torch.channels_last
        self.backbone.to(memory_format=self.layout)
        if self.roi_heads is not None:
            self.roi_heads.arrange(fast)
        for part in self.modules() if fast else ():
            if isinstance(part, Conv | PlainConv):
                part.arrange()
        return self

    def set_precision(self, kind: torch.dtype) -> Detector:
        """Run convolutions and the layers of the heads in `kind`; scores and boxes stay float32."""
        self.backbone.to(kind)
        if self.proposal_generator is not None:
            self.proposal_generator.rpn_head.to(kind)
        if self.roi_heads is not None:
            self.roi_heads.set_precision(kind)
        self.kind = kind
        return self

    @staticmethod
    def _network(network: T | None) -> T:
        if network is None:
            raise ValueError("a detector with roi.head none gives maps only")
        return network


def _parts(images: Tensor) -> Sequence[Tensor]:
    """On a processor image by image: a batch gains nothing there, and places would change bits."""
    return images.split(1) if images.device.type == "cpu" else [images]
