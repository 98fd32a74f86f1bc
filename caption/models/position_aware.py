"""The position-aware Transformer: two levels of a feature pyramid, and edges between grid cells.

Deng, Zhou, He, Huang, Alfarraj and Tolba, "A Position-Aware Transformer for Image Captioning",
Computers, Materials & Continua 70(1), 2022. First image-feature attention puts the fine level into
the coarse one (equations 1 to 3), then the encoder's self-attention adds to keys and values a
learned vector for the way from cell to cell (equations 4 and 5, algorithm 1). docs/models.md says
which readings were taken.

An edge is E_ij = E_row[y_i - y_j] + E_col[x_i - x_j], source minus target, y upwards. It is never
made for all pairs: q_i . E_ij = (q_i E_row^T)[dy] + (q_i E_col^T)[dx], and on the values' side the
weights are summed by displacement and then multiplied with the tables.

Legend: B images, N cells of the coarse level, M of the fine one, H heads, d width of a head, D
model width, S displacements in a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from caption.blocks import Attention, KeysValues
from caption.config import choice
from caption.errors import CaptionError
from caption.features import Features
from caption.transformer import (
    ImageRows,
    PlainSelfAttention,
    Slots,
    TransformerConfig,
)

PLACEMENTS = ("none", "layers", "front")


@dataclass(frozen=True, kw_only=True)
class PositionAwareConfig(TransformerConfig):
    """Sizes and variants; the defaults are those of the paper's table 1."""

    stream: str = "pyramid_high"  # the coarse level: queries, and the rows of the encoder
    low_stream: str = "pyramid_low"  # the fine level that image-feature attention reads
    width: int = 256
    heads: int = 4
    feed_forward: int = 1024
    encoder_layers: int = 6
    decoder_layers: int = 6
    fusion: bool = True  # image-feature attention; without it the coarse level alone (Vanilla)
    fusion_value: bool = True  # W_v of equation 3, which is declared but never used in print
    edges: str = "layers"  # position-aware attention: `none`, in all `layers`, once in `front`
    edge_value: bool = True  # W_v of equation 5, not printed either
    grid: tuple[int, int] = (14, 14)  # most rows and columns of the coarse level

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("model.edges", self.edges, PLACEMENTS)
        if self.boxes:
            raise CaptionError(
                "model.boxes is true, but places come from the edges here; wanted model.boxes=false"
            )
        sizes = (self.head_width, self.value_width)
        if self.edges != "none" and (self.attention_on_attention or sizes != (None, None)):
            raise CaptionError(
                f"model.edges is {self.edges!r} beside attention_on_attention, head_width or"
                " value_width; edges go with plain heads of width / heads only"
            )
        if min(self.grid) < 1:
            raise CaptionError(f"model.grid is {self.grid}, wanted rows and columns from 1 on")

    @property
    def streams(self) -> tuple[str, ...]:
        return (self.stream, self.low_stream) if self.fusion else (self.stream,)


VARIANTS: dict[str, dict[str, Any]] = {
    "vanilla": {"fusion": False, "edges": "none"},
    "fpn": {"edges": "none"},
    "front": {"edges": "front"},
    "as_printed": {"fusion_value": False, "edge_value": False},
}


@dataclass(frozen=True)
class GridRows(ImageRows):
    """What encoder attention sees, with the displacements as places in the edge tables."""

    down: Tensor  # (1 or B, N, N) of y_i - y_j in E_row
    across: Tensor  # (1 or B, N, N) of x_i - x_j in E_col


def displacements(
    shapes: tuple[tuple[int, int], ...], count: int, grid: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 without the edges: places in E_row and E_col for all pairs of cells.

    `shapes` are rows and columns of each image's grid, whose cells stand row by row; `count` is N,
    padding included; `grid` is what the tables serve. (B, N, N) each, or (1, N, N) where all
    images have the same shape. Row indices count downwards, so y_i - y_j = row_j - row_i.
    """
    kinds = shapes[:1] if len(set(shapes)) == 1 else shapes
    columns = torch.tensor([shape[1] for shape in kinds])[:, None]  # (B, 1)
    last = torch.tensor([shape[0] * shape[1] - 1 for shape in kinds])[:, None]  # (B, 1)
    cell = torch.arange(count)[None].minimum(last)  # (B, N): padding stands on the last cell
    row, column = cell // columns, cell % columns  # (B, N) each
    down = row[:, None] - row[:, :, None] + grid[0] - 1  # (B, N, N)
    across = column[:, :, None] - column[:, None] + grid[1] - 1  # (B, N, N)
    return down, across


class ImageFeatureAttention(nn.Module):
    """Equations 1 to 3: softmax((H W_q)(L W_k)^T / sqrt(D)) (L W_v) + H, of a single head."""

    def __init__(self, width: int, value: bool) -> None:
        """Without `value` W_v is the identity."""
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False) if value else nn.Identity()

    def forward(self, high: Tensor, low: Tensor, mask: Tensor) -> Tensor:
        """Coarse (B, N, D), fine (B, M, D), its real cells (B, M) -> (B, N, D)."""
        read = F.scaled_dot_product_attention(
            self.query(high), self.key(low), self.value(low), attn_mask=mask[:, None]
        )  # (B, N, D)
        return high + read


class EdgeAttention(Attention):
    """Equations 4 and 5: attention whose keys and values carry the edge of each pair of cells."""

    def __init__(self, config: PositionAwareConfig) -> None:
        super().__init__(config.width, config.heads)
        rows, columns = config.grid
        self.rows = nn.Parameter(torch.zeros(2 * rows - 1, config.width))  # E_row
        self.columns = nn.Parameter(torch.zeros(2 * columns - 1, config.width))  # E_col
        if not config.edge_value:
            self.value: nn.Module = nn.Identity()  # type: ignore[assignment]

    def attend(self, x: Tensor, image: GridRows) -> Tensor:
        """Every cell (B, N, D) to every real cell of its image: (B, N, D)."""
        source: KeysValues = self.project(x)
        q = self.queries(x, None)  # (B, H, N, d)
        rows, columns = self._table(self.rows), self._table(self.columns)  # (H, S, d) each
        ways = (image.down, rows), (image.across, columns)
        logits = q @ source.keys.transpose(-1, -2)  # (B, H, N, N)
        for places, table in ways:
            by_way = q @ table.transpose(-1, -2)  # (B, H, N, S)
            logits = logits + by_way.gather(-1, _for(places, logits))  # (B, H, N, N)
        logits = (logits / math.sqrt(q.shape[-1])).masked_fill(
            ~image.mask[:, None, None], -math.inf
        )
        weights = logits.softmax(dim=-1)  # (B, H, N, N)
        mixed = weights @ source.values  # (B, H, N, d)
        for places, table in ways:
            by_way = weights.new_zeros(*weights.shape[:-1], table.shape[1])  # (B, H, N, S)
            by_way = by_way.scatter_add(-1, _for(places, weights), weights)
            mixed = mixed + by_way @ table  # (B, H, N, d)
        return self.join(mixed, x)

    def _table(self, table: Tensor) -> Tensor:
        return table.unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, S, d)


def _for(places: Tensor, weights: Tensor) -> Tensor:
    """Places (1 or B, N, N) as an index for (B, H, N, N)."""
    return places[:, None].expand_as(weights)


class PositionAwareSelfAttention(nn.Module):
    """Encoder slot: position-aware attention; the encoder layer adds v_i."""

    def __init__(self, config: PositionAwareConfig) -> None:
        super().__init__()
        self.attention = EdgeAttention(config)

    def forward(self, x: Tensor, image: GridRows) -> Tensor:
        return self.attention.attend(x, image)


class PyramidInput(nn.Module):
    """The model's first part: both levels at model width, the fine one put into the coarse one.

    A level whose rows have model width already is taken as it is, any other through a linear map.
    """

    def __init__(self, config: PositionAwareConfig, in_width: int, low_width: int) -> None:
        """Widths of the coarse and of the fine level."""
        super().__init__()
        self.config = config
        self.needs: tuple[str, ...] = (config.stream,)
        self.high = _project(in_width, config.width)
        self.low = self.fusion = self.front = None
        if config.fusion:
            self.needs = (config.stream, config.low_stream)
            self.low = _project(low_width, config.width)
            self.fusion = ImageFeatureAttention(config.width, config.fusion_value)
        if config.edges == "front":
            self.front = PositionAwareSelfAttention(config)

    def forward(self, features: Features) -> tuple[Tensor, ImageRows]:
        """Rows (B, N, D) and what attention sees beside them."""
        stream, low = self.config.stream, self.config.low_stream
        x = self.high(features.rows[stream])  # (B, N, D)
        mask = features.mask[stream]  # (B, N)
        if self.fusion is not None and self.low is not None:
            x = self.fusion(x, self.low(features.rows[low]), features.mask[low])  # (B, N, D)
        if self.config.edges == "none":
            return x, ImageRows(mask)
        shapes = self._shapes(features)
        down, across = displacements(shapes, x.shape[1], self.config.grid)  # (1 or B, N, N) each
        image = GridRows(mask, down.to(x.device), across.to(x.device))
        if self.front is not None:
            x = x + self.front(x, image)  # (B, N, D)
        return x, image

    def _shapes(self, features: Features) -> tuple[tuple[int, int], ...]:
        """The grid of each image. Raises CaptionError where there is none or the tables end."""
        stream, grid = self.config.stream, self.config.grid
        shapes = features.grid_shape.get(stream)
        if shapes is None:
            raise CaptionError(
                f"stream {stream!r} is no grid, and edges go from cell to cell; extract with"
                " --preset imagenet-pyramid, or type -o model.edges=none"
            )
        rows, columns = (max(sides) for sides in zip(*shapes, strict=True))
        if rows > grid[0] or columns > grid[1]:
            raise CaptionError(
                f"stream {stream!r} has grids of {rows} x {columns} cells, model.grid is"
                f" {grid[0]} x {grid[1]}; type -o model.grid={rows},{columns}"
            )
        return shapes


def _project(in_width: int, width: int) -> nn.Module:
    return nn.Identity() if in_width == width else nn.Linear(in_width, width)


def slots(config: PositionAwareConfig, low_width: int) -> Slots:
    """The skeleton's parts; `low_width` counts where the fine level is read."""
    attention: Callable[[PositionAwareConfig], nn.Module] = PlainSelfAttention
    if config.edges == "layers":
        attention = PositionAwareSelfAttention
    return Slots(input=partial(PyramidInput, low_width=low_width), self_attention=attention)
