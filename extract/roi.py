"""What is done with each proposal: pooling, the head, classes, boxes and attributes.

Legend: R regions, C channels, h w a map's height and width, P bins a side, D feature width,
K classes with the background, S samples of a bin a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align, roi_pool

from extract.detector_config import DetectorConfig, RoiConfig
from extract.resnet import FrozenNorm, Stage

_CANONICAL = (224.0, 4)  # a region of this side belongs to this pyramid level


@dataclass(frozen=True)
class RegionOutputs:
    """What the head says of an image's regions."""

    features: Tensor  # (R, D)
    logits: Tensor  # (R, K)
    deltas: Tensor  # (R, 4 K) or without the background's four
    attributes: Tensor | None  # (R, attributes) logits
    pooled: Tensor | None = None  # (R, C) of heads that pool to a single bin


class RegionPooler(nn.Module):
    """Regions to tensors of one size."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config.roi
        self.strides = [config.map_stride(name) for name in config.roi.maps]

    def forward(self, maps: Sequence[Tensor], boxes: Tensor, level: Tensor | None) -> Tensor:
        """One image's maps (1, C, h, w) and boxes (R, 4), pixels of the input -> (R, C, P, P)."""
        if level is None:
            return self._pooled(maps[0], boxes, self.strides[0])
        size = self.config.resolution
        pooled = boxes.new_zeros(len(boxes), maps[0].shape[1], size, size)  # (R, C, P, P)
        for number, (x, stride) in enumerate(zip(maps, self.strides, strict=True)):
            here = (level == number).nonzero()[:, 0]
            if len(here):
                pooled[here] = self._pooled(x, boxes[here], stride)
        return pooled

    def levels(self, boxes: Tensor) -> Tensor | None:
        """The map (R,) that each of the boxes (R, 4) is pooled from, when there are several."""
        if len(self.strides) == 1:
            return None
        side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()  # (R,)
        level = torch.floor(_CANONICAL[1] + torch.log2(side / _CANONICAL[0] + 1e-8))
        first = self.strides[0].bit_length() - 1  # level of a map: the logarithm of its stride
        return (level - first).clamp(0, len(self.strides) - 1).long()

    def _pooled(self, x: Tensor, boxes: Tensor, stride: int) -> Tensor:
        config = self.config
        if config.pooler == "ROIPool":
            return roi_pool(x, [boxes], config.resolution, 1 / stride)
        return roi_align(
            x,
            [boxes],
            config.resolution,
            1 / stride,
            sampling_ratio=config.sampling,
            aligned=config.pooler == "ROIAlignV2",
        )


def sampled_bins(x: Tensor, boxes: Tensor, config: RoiConfig, stride: int, every: int) -> Tensor:
    """RoIAlign of a map (1, C, h, w) with a fixed number of samples, as sums of weighted cells.

    Of the bins of boxes (R, 4) each `every`-th row and column: (R, C, P', P'), channels last.
    Equal to torchvision's up to the order of the sums; it reads all channels of a cell at once.
    """
    high, wide = x.shape[2:]
    corners = boxes / stride - (0.5 if config.pooler == "ROIAlignV2" else 0.0)  # (R, 4)
    sides = corners[:, 2:] - corners[:, :2]  # (R, 2)
    if config.pooler == "ROIAlign":
        sides = sides.clamp(min=1)
    bins = torch.arange(0, config.resolution, every, device=x.device)  # (P',)
    samples = (torch.arange(config.sampling, device=x.device) + 0.5) / config.sampling  # (S,)
    steps = (bins[:, None] + samples) / config.resolution  # (P', S) in parts of a side
    column, across = _neighbours(corners[:, 0], sides[:, 0], steps, wide)  # (R, P', 2 S)
    row, down = _neighbours(corners[:, 1], sides[:, 1], steps, high)
    cells = row[:, :, None, :, None] * wide + column[:, None, :, None, :]  # (R, P', P', 2 S, 2 S)
    weights = down[:, :, None, :, None] * across[:, None, :, None, :]
    table = x[0].permute(1, 2, 0).reshape(high * wide, -1)  # (h w, C)
    summed = F.embedding_bag(
        cells.flatten(3).flatten(0, 2),
        table,
        mode="sum",
        per_sample_weights=weights.flatten(3).flatten(0, 2),
    )  # (R P' P', C)
    return summed.view(len(boxes), len(bins), len(bins), -1).permute(0, 3, 1, 2)


def _neighbours(start: Tensor, side: Tensor, steps: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """Cells on both sides of each sample of a bin, and their shares of its mean, (R, P', 2 S)."""
    place = start[:, None, None] + steps * side[:, None, None]  # (R, P', S)
    inside = (place >= -1) & (place <= cells)
    place = place.clamp(min=0, max=cells - 1)
    low = place.floor()
    upper = place - low  # share of the cell behind
    both = torch.stack((low, (low + 1).clamp(max=cells - 1)), dim=-1).long()  # (R, P', S, 2)
    shares = torch.stack((1 - upper, upper), dim=-1) * inside[..., None] / steps.shape[1]
    return both.flatten(2), shares.flatten(2)


class FullyConnected(nn.Module):
    """Layers over flattened regions, `fc1`, `fc2`, ..."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        width = config.fc_inputs
        for number in range(config.roi.fc_layers):
            self.add_module(f"fc{number + 1}", nn.Linear(width, config.roi.fc_width))
            width = config.roi.fc_width

    def forward(self, pooled: Tensor) -> Tensor:
        """(R, C, P, P) -> (R, D)."""
        x = pooled.flatten(1)
        for layer in self.children():
            x = F.relu_(layer(x))
        return x


class BoxPredictor(nn.Module):
    """Scores of classes, and four deltas for each."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        roi, width = config.roi, config.feature_width
        boxed = roi.classes + 1 if roi.background_first else roi.classes
        self.cls_score = nn.Linear(width, roi.classes + 1)
        self.bbox_pred = nn.Linear(width, 4 * boxed)
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)


class AttributePredictor(nn.Module):
    """Scores of attributes from a region's feature and its best class, background included."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        roi = config.roi
        self.obj_embed = nn.Embedding(roi.classes + 1, roi.attribute_embedding)
        inputs = config.feature_width + roi.attribute_embedding
        self.fc = nn.Sequential(nn.Linear(inputs, roi.attribute_hidden), nn.ReLU())
        self.attr_score = nn.Linear(
            roi.attribute_hidden, roi.attributes + (1 if roi.attribute_none else 0)
        )

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(R, D) and (R, K) -> (R, attributes)."""
        embedded = self.obj_embed(logits.argmax(dim=1))  # (R, embedding)
        scores: Tensor = self.attr_score(self.fc(torch.cat((features, embedded), dim=1)))
        return scores


class RegionHeads(nn.Module):
    """Maps and boxes to features, classes and attributes."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        roi = config.roi
        self.config = config
        self.pooler = RegionPooler(config)
        self.res5 = Stage(config.resnet, 5) if roi.head == "res5" else None
        pre = roi.head == "res5" and config.resnet.pre_activation
        self.res5_bn = FrozenNorm(config.feature_width, 2e-5) if pre else None
        self.box_head = FullyConnected(config) if roi.head == "fc" else None
        self.box_predictor = BoxPredictor(config)
        self.attribute_predictor = AttributePredictor(config) if roi.attributes else None
        self.kind = torch.float32  # of the head's layers
        self.layout = torch.contiguous_format  # of its convolutions
        self.gathers = False  # pools by `sampled_bins`
        self.thinning = 1  # the stride of the bins that res5 looks at

    def forward(self, maps: dict[str, Tensor], boxes: Tensor, chunk: int) -> RegionOutputs:
        """An image's maps (1, C, h, w) and boxes (R, 4) -> what they are, `chunk` at a time."""
        used = [maps[name].float() for name in self.config.roi.maps]
        if not self.gathers:
            used = [x.contiguous() for x in used]  # pooling reads rows of one channel
        levels = self.pooler.levels(boxes)
        features, kept = [], []
        for start in range(0, len(boxes), chunk):
            part = slice(start, start + chunk)
            if self.gathers:
                stride = self.pooler.strides[0]
                pooled = sampled_bins(used[0], boxes[part], self.config.roi, stride, self.thinning)
            else:
                pooled = self.pooler(used, boxes[part], None if levels is None else levels[part])
            features.append(self.head(pooled))
            if self.config.roi.resolution == 1:
                kept.append(pooled.flatten(1))
        if not features:
            return self.predict(boxes.new_zeros(0, self.config.feature_width))
        outputs = self.predict(torch.cat(features))  # (R, D)
        return replace(outputs, pooled=torch.cat(kept)) if kept else outputs

    def head(self, pooled: Tensor) -> Tensor:
        """Pooled regions (R, C, P, P) -> features (R, D), float32."""
        x = pooled.to(self.kind)
        if self.box_head is not None:
            return self.box_head(x).float()
        x = x.contiguous(memory_format=self.layout)
        thinned = self.thinning > 1
        return self.last_map(x, self.config.roi.res5_dilation, thinned).float().mean(dim=(2, 3))

    def last_map(self, x: Tensor, dilation: int, thinned: bool = False) -> Tensor:
        """(R, C, h, w) of res4 -> (R, D, h', w') of res5; pre-activated ones come normed."""
        if self.res5 is None:
            raise ValueError("only a head of residual blocks has a last map")
        if self.res5_bn is None:
            y: Tensor = self.res5(x, dilation, thinned=thinned)
            return y
        return F.relu_(self.res5_bn(self.res5(x, dilation, activated=True, thinned=thinned)))

    def predict(self, features: Tensor) -> RegionOutputs:
        """Features (R, D) -> what they are."""
        logits = self.box_predictor.cls_score(features)
        return RegionOutputs(
            features=features,
            logits=logits,
            deltas=self.box_predictor.bbox_pred(features),
            attributes=None
            if self.attribute_predictor is None
            else self.attribute_predictor(features, logits),
        )

    def arrange(self, processor: bool) -> None:
        """Lay the convolutions' weights out by channels last; on a processor pool so, too.

        There, of regions that a first 1x1 convolution strides over, only the bins that it looks at
        are made.
        """
        roi = self.config.roi
        if self.res5 is not None:
            self.layout = torch.channels_last
            self.res5.to(memory_format=self.layout)
        if processor and len(roi.maps) == 1 and roi.pooler != "ROIPool" and roi.sampling > 0:
            self.gathers = True
            if (
                self.res5 is not None
                and roi.res5_dilation == 1
                and self.config.resnet.stride_in_1x1
            ):
                self.thinning = self.res5.stride

    def set_precision(self, kind: torch.dtype) -> None:
        """Run the head in `kind`; pooling, classes, boxes and attributes stay float32."""
        for part in (self.res5, self.res5_bn, self.box_head):
            if part is not None:
                part.to(kind)
        self.kind = kind

    def fold(self) -> None:
        """Merge norms into convolutions."""
        if self.res5 is not None:
            self.res5.fold()
