"""The region proposal network, as detectron2 names its parameters.

Legend: B images, C channels, h w a map's height and width, A anchors of a cell, N proposals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from extract.anchors import caffe_anchors, cell_anchors, spread
from extract.box_geometry import clip, decode, larger_than
from extract.detector_config import DetectorConfig
from extract.nms import nms
from extract.resnet import PlainConv


@dataclass(frozen=True)
class Frame:
    """Where an image lies in the network's input, which may be padded at the right and below."""

    height: int  # of the resized image
    width: int
    scale: float  # resized size over original size, as the min_size of proposals is counted


@dataclass(frozen=True)
class Proposals:
    """An image's proposals, best first."""

    boxes: Tensor  # (N, 4) pixels of the input
    scores: Tensor  # (N,) logits, or probabilities of the two-score form


class RpnHead(nn.Module):
    """A hidden 3x3 convolution, then scores and box deltas for each anchor of a cell."""

    def __init__(self, inputs: int, hidden: int, anchors: int, softmax: bool) -> None:
        super().__init__()
        self.conv = PlainConv(inputs, hidden, 3)
        self.objectness_logits = PlainConv(hidden, anchors * (2 if softmax else 1), 1)
        self.anchor_deltas = PlainConv(hidden, anchors * 4, 1)
        for layer in (self.conv, self.objectness_logits, self.anchor_deltas):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, h, w) -> scores (B, A or 2 A, h, w) and deltas (B, 4 A, h, w), float32."""
        hidden = F.relu_(self.conv(x))
        return self.objectness_logits(hidden).float(), self.anchor_deltas(hidden).float()


class AnchorGenerator(nn.Module):
    """The anchors of each map's cells; a checkpoint may bring its own."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        rpn = config.rpn
        make = caffe_anchors if rpn.caffe_anchors else cell_anchors
        sizes = rpn.sizes if len(rpn.sizes) > 1 else rpn.sizes * len(rpn.maps)
        self.cell_anchors = nn.ParameterList(
            nn.Parameter(make(s, rpn.ratios), requires_grad=False) for s in sizes
        )


class ProposalNetwork(nn.Module):
    """Maps to proposals."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config.rpn
        self.plus_one = config.plus_one
        self.strides = [config.map_stride(name) for name in config.rpn.maps]
        self.anchor_generator = AnchorGenerator(config)
        inputs = config.map_channels(config.rpn.maps[0])
        hidden = config.rpn.channels or inputs
        anchors = len(self.anchor_generator.cell_anchors[0])
        self.rpn_head = RpnHead(inputs, hidden, anchors, config.rpn.softmax)

    def predict(self, maps: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """For each of the config's maps the raw scores and deltas."""
        return [self.rpn_head(maps[name]) for name in self.config.maps]

    def select(self, predicted: list[tuple[Tensor, Tensor]], place: int, frame: Frame) -> Proposals:
        """The proposals of the image at `place` of the batch."""
        config, found = self.config, []
        for (scores, deltas), anchors, stride in zip(
            predicted, self.anchor_generator.cell_anchors, self.strides, strict=True
        ):
            high, wide = scores.shape[2:]
            flat = self._flat_scores(scores[place])  # (h w A,)
            deltas = deltas[place].reshape(-1, 4, high, wide).permute(2, 3, 0, 1).reshape(-1, 4)
            boxes = spread(anchors.data.float(), high, wide, stride)  # (h w A, 4)
            keep_best = self._best_caffe if self.plus_one else self._best
            found.append(keep_best(boxes, deltas, flat, frame))
        boxes = torch.cat([b for b, _ in found])  # (N', 4)
        scores = torch.cat([s for _, s in found])  # (N',)
        best = torch.sort(scores, descending=True, stable=True).indices[: config.after_nms]
        return Proposals(boxes[best], scores[best])

    def _flat_scores(self, scores: Tensor) -> Tensor:
        """Scores (A or 2 A, h, w) as (h w A,)."""
        if self.config.softmax:  # all background scores come first
            scores = scores.unflatten(0, (2, -1)).softmax(dim=0)[1]  # (A, h, w)
        return scores.permute(1, 2, 0).reshape(-1)

    def _best(
        self, anchors: Tensor, deltas: Tensor, scores: Tensor, frame: Frame
    ) -> tuple[Tensor, Tensor]:
        """Detectron2's order: best scores, decode, clip, drop the small, suppress."""
        count = min(self.config.before_nms, len(scores))
        scores, best = torch.topk(scores, count)
        boxes = decode(deltas[best], anchors[best], (1, 1, 1, 1), False)  # (count, 4)
        finite = torch.isfinite(boxes).all(dim=1) & torch.isfinite(scores)
        boxes = clip(boxes, frame.height, frame.width, False)
        fits = finite & larger_than(boxes, self.config.min_size * frame.scale, False)
        boxes, scores = boxes[fits], scores[fits]
        kept = nms(boxes, scores, self.config.nms)[: self.config.after_nms]
        return boxes[kept], scores[kept]

    def _best_caffe(
        self, anchors: Tensor, deltas: Tensor, scores: Tensor, frame: Frame
    ) -> tuple[Tensor, Tensor]:
        """Caffe's order: decode, clip, drop the small, best scores, suppress."""
        boxes = decode(deltas, anchors, (1, 1, 1, 1), True)  # (h w A, 4)
        boxes = clip(boxes, frame.height, frame.width, True)
        fits = larger_than(boxes, self.config.min_size * frame.scale, True)
        boxes, scores = boxes[fits], scores[fits]
        scores, best = torch.sort(scores, descending=True, stable=True)
        best = best[: self.config.before_nms]
        boxes, scores = boxes[best], scores[: len(best)]
        kept = nms(boxes, scores, self.config.nms, plus_one=True)[: self.config.after_nms]
        return boxes[kept], scores[kept]
