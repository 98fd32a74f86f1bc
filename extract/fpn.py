"""The feature pyramid over a residual network, as detectron2 names its parameters.

Legend: B images, C channels, h w a map's height and width.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn
from torch.nn import functional as F

from extract.detector_config import ResNetConfig
from extract.resnet import PlainConv, ResNet


class FeaturePyramid(nn.Module):
    """Maps p2 to p6 of one width, each with what the coarser ones know."""

    def __init__(self, config: ResNetConfig, channels: int) -> None:
        super().__init__()
        self.bottom_up = ResNet(config)
        for level in self.bottom_up.levels:
            inputs = config.res2_channels * 2 ** (level - 2)
            self.add_module(f"fpn_lateral{level}", PlainConv(inputs, channels, 1))
            self.add_module(f"fpn_output{level}", PlainConv(channels, channels, 3))

    def forward(self, images: Tensor, wanted: Collection[str] | None = None) -> dict[str, Tensor]:
        """(B, 3, H, W), multiples of 32 -> `res2` .. `res5` and `p2` .. `p6` (B, C, h, w).

        Of the pyramid's levels those that are `wanted`; None wants all.
        """
        maps = self.bottom_up(images)
        top = self.bottom_up.levels[-1]
        every = [f"p{level}" for level in (*self.bottom_up.levels, top + 1)]
        named = [name for name in every if wanted is None or name in wanted]
        lowest = int(named[0][1:]) if named else top + 1
        above: Tensor | None = None
        for level in range(min(top, lowest), top + 1)[::-1]:
            x = self.get_submodule(f"fpn_lateral{level}")(maps[f"res{level}"])  # (B, C, h, w)
            if above is not None:
                x += F.interpolate(above, scale_factor=2.0, mode="nearest")
            if f"p{level}" in named or (level == top and every[-1] in named):
                maps[f"p{level}"] = self.get_submodule(f"fpn_output{level}")(x)
            above = x
        if every[-1] in named:
            maps[every[-1]] = F.max_pool2d(maps[f"p{top}"], 1, 2)  # every second cell
        return maps

    def fold(self) -> None:
        """Merge norms into convolutions."""
        self.bottom_up.fold()
