"""The parts that captioners are made of: attention, add-and-norm, feed-forward, positions.

Legend: B images, N rows of an image, Q queries, R captions or beams (grouped by image), T words,
D width, H heads, d width of a head.
All layers are post-norm, as in Vaswani et al., "Attention Is All You Need" (2017).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class KeysValues(NamedTuple):
    """Projected keys and values, split in heads."""

    keys: Tensor  # (B, H, N, d)
    values: Tensor  # (B, H, N, d)

    def append(self, other: KeysValues) -> KeysValues:
        """Both, one behind the other along the rows."""
        return KeysValues(
            torch.cat([self.keys, other.keys], dim=2),  # (B, H, N + N', d)
            torch.cat([self.values, other.values], dim=2),  # (B, H, N + N', d)
        )

    def select(self, rows: Tensor) -> KeysValues:
        """The entries at `rows` of the first axis."""
        return KeysValues(self.keys.index_select(0, rows), self.values.index_select(0, rows))


class Attention(nn.Module):
    """Scaled dot-product attention with H heads and biased projections."""

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int | None = None,
        value_width: int | None = None,
    ) -> None:
        """`head_width` is d, by default D / H; `value_width` that of the values, by default d."""
        super().__init__()
        self.heads = heads
        d = width // heads if head_width is None else head_width
        v = d if value_width is None else value_width
        self.query = nn.Linear(width, heads * d)
        self.key = nn.Linear(width, heads * d)
        self.value = nn.Linear(width, heads * v)
        self.output = nn.Linear(heads * v, width)
        for layer in (self.query, self.key, self.value, self.output):
            nn.init.zeros_(layer.bias)

    def split(self, projected: Tensor) -> Tensor:
        """(B, N, H d) -> (B, H, N, d)."""
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def project(self, source: Tensor) -> KeysValues:
        """Keys and values of (B, N, D) rows, to be computed once and kept."""
        return KeysValues(self.split(self.key(source)), self.split(self.value(source)))

    def queries(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """Queries (B, H, Q, d) of (B, Q, D) rows; `mask` is there for normalized ones."""
        return self.split(self.query(rows))

    def forward(
        self, queries: Tensor, source: KeysValues, mask: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Attend from (B, Q, D) to the source.

        `mask` (B or 1, 1 or Q, N) is True where allowed; `bias` (B, H, Q, N) is added to the
        logits, already divided by sqrt(d).
        """
        allowed = None if mask is None else mask[:, None]  # (B, 1, 1 or Q, N)
        if bias is not None and allowed is not None:
            allowed = bias.masked_fill(~allowed, -math.inf)  # (B, H, Q, N)
        mixed = F.scaled_dot_product_attention(
            self.queries(queries, mask),  # (B, H, Q, d)
            source.keys,
            source.values,
            attn_mask=bias if allowed is None else allowed,
        )
        return self.join(mixed, queries)

    def weights(
        self, queries: Tensor, source: KeysValues, mask: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """The attention weights (B, H, Q, N) that `forward` mixes the values with."""
        q = self.queries(queries, mask)  # (B, H, Q, d)
        logits = q @ source.keys.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, Q, N)
        if bias is not None:
            logits = logits + bias
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], -math.inf)
        return logits.softmax(dim=-1)

    def join(self, mixed: Tensor, queries: Tensor) -> Tensor:
        """Heads (B, H, Q, d) to (B, Q, D). `queries` (B, Q, D) are there for gated attention."""
        attended: Tensor = self.output(mixed.transpose(1, 2).flatten(2))  # (B, Q, D)
        return attended


class AttentionOnAttention(Attention):
    """Attention whose result a is gated by the query q: sigmoid([a, q] W2) * ([a, q] W1).

    Huang et al., "Attention on Attention for Image Captioning" (2019), as the M2 paper puts it
    into every attention of a Transformer.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int | None = None,
        value_width: int | None = None,
    ) -> None:
        """Sizes as those of `Attention`."""
        super().__init__(width, heads, head_width, value_width)
        self.information = nn.Linear(2 * width, width)  # W1
        self.gate = nn.Linear(2 * width, width)  # W2

    def join(self, mixed: Tensor, queries: Tensor) -> Tensor:
        """Heads (B, H, Q, d) and the queries (B, Q, D) to (B, Q, D)."""
        both = torch.cat([super().join(mixed, queries), queries], dim=-1)  # (B, Q, 2 D)
        gated: Tensor = self.gate(both).sigmoid() * self.information(both)  # (B, Q, D)
        return gated


class AddNorm(nn.Module):
    """LayerNorm(x + dropout(f(x))), and with `twice` a second one around the first.

    The releases of DLCT, RSTNet, S2 and DIFNet norm every attention twice.
    """

    def __init__(self, width: int, dropout: float, twice: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.LayerNorm(width) if twice else None

    def once(self, x: Tensor, change: Tensor) -> Tensor:
        """The inner add-and-norm alone."""
        normed: Tensor = self.norm(x + self.dropout(change))
        return normed

    def forward(self, x: Tensor, change: Tensor) -> Tensor:
        normed = self.once(x, change)
        return normed if self.outer is None else self.outer(x + self.dropout(normed))


class FeedForward(nn.Module):
    """Two linear layers with ReLU and dropout between, wrapped in add-and-norm."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)
        self.add_norm = AddNorm(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        change = self.contract(self.dropout(F.relu(self.expand(x))))  # (B, N, D)
        normed: Tensor = self.add_norm(x, change)
        return normed


class FeatureInput(nn.Module):
    """Image rows to model width: LayerNorm(dropout(ReLU(W x + b))).

    With `use_boxes` a linear map of each row's box, (x1, y1, x2, y2) over the image's size and
    the box's share of its area, is added before the ReLU; without it rows have no position.
    """

    def __init__(
        self, in_width: int, width: int, dropout: float, use_boxes: bool, norm: bool = True
    ) -> None:
        """Without `norm` the LayerNorm is left out."""
        super().__init__()
        self.project = nn.Linear(in_width, width)
        self.place = nn.Linear(5, width, bias=False) if use_boxes else None
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, rows: Tensor, located: tuple[Tensor, Tensor] | None) -> Tensor:
        """(B, N, in_width) -> (B, N, D); `located`: boxes (B, N, 4) and sizes (B, 2) in pixels."""
        x = self.project(rows)  # (B, N, D)
        if self.place is not None and located is not None:
            boxes, sizes = located
            scaled = boxes / sizes.repeat(1, 2)[:, None]  # (B, N, 4) in 0..1
            extent = scaled[..., 2:] - scaled[..., :2]  # (B, N, 2)
            area = extent.prod(dim=-1, keepdim=True)  # (B, N, 1)
            x = x + self.place(torch.cat([scaled, area], dim=-1))  # (B, N, D)
        normed: Tensor = self.norm(self.dropout(F.relu(x)))
        return normed


def sinusoids(length: int, width: int) -> Tensor:
    """Sinusoidal positions (length, width): sines at even and cosines at odd channels."""
    place = torch.arange(length, dtype=torch.float32)[:, None]  # (length, 1)
    channel = torch.arange(0, width, 2, dtype=torch.float32)  # (width / 2,)
    angle = place * torch.exp(channel * (-math.log(10000.0) / width))  # (length, width / 2)
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle)[:, : width // 2]
    return table


def causal_mask(length: int, device: torch.device) -> Tensor:
    """(1, T, T), True where a word may look: at itself and before."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None]


def by_image(per_row: Tensor, images: int) -> Tensor:
    """(R, H, T, ..) -> (B, H, R/B T, ..)."""
    return per_row.unflatten(0, (images, -1)).transpose(1, 2).flatten(2, 3)


def by_row(per_image: Tensor, words: int) -> Tensor:
    """(B, H, R/B T, ..) -> (R, H, T, ..)."""
    return per_image.unflatten(2, (-1, words)).transpose(1, 2).flatten(0, 1)
