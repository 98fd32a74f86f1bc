"""NG-SAN: normalized and geometry-aware self-attention in the encoder.

Guo, Liu, Zhu, Yao, Lu and Lu, "Normalized and Geometry-Aware Self-Attention Network for Image
Captioning", CVPR 2020. docs/models.md says which readings were taken where the paper leaves a
choice.

Legend: B images, N rows of an image, C channels, H heads, d width of a head, D model width, g width
of the pairs' geometry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from caption.blocks import Attention, FeatureInput, KeysValues
from caption.config import choice
from caption.errors import CaptionError
from caption.features import Features
from caption.transformer import ImageRows, Slots, TransformerConfig

EPSILON = 1e-5  # added to the variance
CLOSEST = 1e-3  # smallest distance over size whose logarithm is taken; i = j would give log 0
CHUNK_BYTES = 8 * 2**20  # of the pairs' geometry that is held at one time
SINUSOID_SCALE = 100.0  # a place in 0..1 becomes a position in 0..100

NORMALIZED = ("none", "query", "key", "both")
NORMS = ("instance", "instance-affine", "layer", "batch")
GEOMETRY = ("independent", "query", "key")
ABSOLUTE = ("none", "embedding", "sinusoid")


@dataclass(frozen=True, kw_only=True)
class NormalizedGeometryConfig(TransformerConfig):
    """Sizes and variants; the defaults are NG-SAN as published (4 + 4 layers)."""

    stream: str = "regions"
    encoder_layers: int = 4
    decoder_layers: int = 4
    output_bias: bool = True
    normalize: str = "query"  # of the encoder's self-attention: `none`, `query`, `key`, `both`
    norm: str = "instance"  # or `instance-affine`, `layer`, `batch` (table 2)
    geometry: tuple[str, ...] = ("query",)  # summed: `independent`, `query`, `key` (table 4)
    geometry_width: int = 64  # g; not printed: 80 gives the printed number of parameters
    geometry_per_head: bool = False  # one map of the pairs per head instead of one per layer
    absolute: str = "none"  # absolute places instead: `embedding`, `sinusoid` (table 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("model.normalize", self.normalize, NORMALIZED)
        choice("model.norm", self.norm, NORMS)
        choice("model.absolute", self.absolute, ABSOLUTE)
        if self.attention_on_attention:
            raise CaptionError(
                "model.attention_on_attention is true, wanted false: this attention has no gate"
            )
        for kind in self.geometry:
            choice("model.geometry", kind, GEOMETRY)
        if len(set(self.geometry)) < len(self.geometry):
            raise CaptionError(
                f"model.geometry is {', '.join(self.geometry)}, wanted each kind at most once"
            )
        if self.geometry_width < 1:
            raise CaptionError(f"model.geometry_width is {self.geometry_width}, wanted 1 or more")
        if self.absolute == "sinusoid" and self.width % 8:
            raise CaptionError(
                f"model.width is {self.width} and model.absolute a sinusoid, wanted a multiple of 8"
            )


@dataclass(frozen=True)
class GeometryRows(ImageRows):
    """What encoder attention sees, with the geometry of all pairs of rows."""

    pairs: Tensor | None  # (B, N, N, 4); None where no layer asks for it


class InstanceNorm(nn.Module):
    """IN: each channel of an image has mean 0 and variance 1 over the real rows."""

    def __init__(self, channels: int, affine: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels)) if affine else None
        self.shift = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """(B, N, C), real rows (B, N) -> (B, N, C), zero where padded."""
        x, rows = x.float(), real[..., None].float()  # (B, N, C), (B, N, 1)
        count = rows.sum(dim=1, keepdim=True)  # (B, 1, 1)
        centred = (x - (x * rows).sum(dim=1, keepdim=True) / count) * rows  # (B, N, C)
        variance = centred.square().sum(dim=1, keepdim=True) / count  # (B, 1, C)
        normed = centred * torch.rsqrt(variance + EPSILON)  # (B, N, C)
        if self.gain is None or self.shift is None:
            return normed
        return (normed * self.gain + self.shift) * rows


class LayerNorm(nn.Module):
    """Table 2, LN: each row has mean 0 and variance 1 over its channels; with gain and shift."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=EPSILON)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """(B, N, C), real rows (B, N) -> (B, N, C)."""
        normed: Tensor = self.norm(x)
        return normed


class BatchNorm(nn.Module):
    """Table 2, BN: over the real rows of the whole batch, running statistics when evaluating."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels, eps=EPSILON)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """(B, N, C), real rows (B, N) -> (B, N, C), zero where padded."""
        normed = torch.zeros_like(x)  # (B, N, C)
        normed[real] = self.norm(x[real]).to(x.dtype)  # (real rows of the batch, C)
        return normed


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "layer":
        return LayerNorm(channels)
    if kind == "batch":
        return BatchNorm(channels)
    return InstanceNorm(channels, affine=kind == "instance-affine")


class NormalizedAttention(Attention):
    """NSA: softmax(norm(Q) K^T / sqrt(d)) V; by choice the keys are normalized too.

    An instance norm takes away what the bias of its projection adds.
    """

    def __init__(self, config: NormalizedGeometryConfig) -> None:
        super().__init__(config.width, config.heads, config.head_width, config.value_width)
        kind, normalize, width = config.norm, config.normalize, self.query.out_features
        self.query_norm = _norm(kind, width) if normalize in ("query", "both") else None
        self.key_norm = _norm(kind, width) if normalize in ("key", "both") else None

    def queries(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N, D) rows, the real ones True in `mask` (B, 1, N) -> (B, H, N, d)."""
        if self.query_norm is None:
            return super().queries(rows, mask)
        everywhere = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)  # (B, N)
        real = everywhere if mask is None else mask[:, 0]  # (B, N)
        return self.split(self.query_norm(self.query(rows), real))

    def project_rows(self, rows: Tensor, real: Tensor) -> KeysValues:
        """Keys and values of (B, N, D) rows, of which `real` (B, N) are no padding."""
        if self.key_norm is None:
            return self.project(rows)
        keys = self.key_norm(self.key(rows), real)  # (B, N, D)
        return KeysValues(self.split(keys), self.split(self.value(rows)))


def pair_geometry(boxes: Tensor) -> Tensor:
    """f_ij: the relative geometry (B, N, N, 4) of boxes (B, N, 4) x1 y1 x2 y2.

    log(|x_i - x_j| / w_i), log(|y_i - y_j| / h_i), log(w_i / w_j), log(h_i / h_j) with centres x y
    and sizes w h; a side shorter than a pixel counts as a pixel.
    """
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1.0)  # (B, N, 2)
    centre = (boxes[..., 2:] + boxes[..., :2]) / 2  # (B, N, 2)
    distance = (centre[:, :, None] - centre[:, None]).abs()  # (B, N, N, 2)
    nearness = (distance / size[:, :, None]).clamp(min=CLOSEST).log()  # (B, N, N, 2)
    logs = size.log()  # (B, N, 2)
    return torch.cat([nearness, logs[:, :, None] - logs[:, None]], dim=-1)  # (B, N, N, 4)


class PairBias(nn.Module):
    """G_ij = ReLU(FC(f_ij)), and what attention adds for it (phi, equations 11 to 13).

    `independent`: ReLU(w . G_ij) per head; `query`: q'_i . G_ij; `key`: k'_j . G_ij, with q' and k'
    linear maps of the rows. All are divided by sqrt(g), as content is by sqrt(d).

    G is B x N x N x g: it is made for a few rows at a time, `CHUNK_BYTES` of it, and made again for
    the gradients, so that memory does not grow with it.
    """

    def __init__(self, config: NormalizedGeometryConfig, kind: str) -> None:
        super().__init__()
        self.kind, self.heads, self.width = kind, config.heads, config.geometry_width
        self.per_head = config.geometry_per_head
        self.embed = nn.Linear(4, self.width * (self.heads if self.per_head else 1))
        self.vectors = nn.Linear(config.width, self.heads * self.width)
        if kind == "independent":
            self.vectors = nn.Linear(self.width, self.heads, bias=False)  # one w per head

    def forward(self, x: Tensor, pairs: Tensor) -> Tensor:
        """Rows (B, N, D) and geometry (B, N, N, 4) -> bias (B, H, N, N)."""
        images, count = x.shape[:2]
        if self.kind == "independent":
            vectors = self.vectors.weight[None].expand(images * count, -1, -1)  # (B N, H, g)
        else:
            vectors = self.vectors(x).view(images * count, self.heads, self.width)  # (B N, H, g)
        if self.kind == "key":
            pairs = pairs.transpose(1, 2)  # (B, N, N, 4): j before i
        vectors = vectors / math.sqrt(self.width)
        dotted = self._chunked(vectors, pairs.reshape(-1, count, 4))  # (B N, H, N)
        bias = dotted.view(images, count, self.heads, count)
        if self.kind == "key":
            return bias.permute(0, 2, 3, 1)  # (B, H, N, N): i before j
        return bias.transpose(1, 2)  # (B, H, N, N)

    def _chunked(self, vectors: Tensor, pairs: Tensor) -> Tensor:
        """(R, H, g) vectors and (R, N, 4) geometry -> (R, H, N) products with G."""
        row = pairs.shape[1] * self.embed.out_features * 4  # bytes of G for one row
        size = max(1, CHUNK_BYTES // row)
        if size >= len(pairs):
            return self._dotted(vectors, pairs)
        step: Callable[[Tensor, Tensor], Tensor] = self._dotted
        parts = [
            checkpoint(step, v, f, use_reentrant=False, preserve_rng_state=False)
            for v, f in zip(vectors.split(size), pairs.split(size), strict=True)
        ]
        return torch.cat(parts)  # (R, H, N)

    def _dotted(self, vectors: Tensor, pairs: Tensor) -> Tensor:
        geometry = F.relu(self.embed(pairs))  # (R, N, g) or (R, N, H g)
        if self.per_head:
            by_head = geometry.unflatten(-1, (self.heads, self.width))  # (R, N, H, g)
            dotted = torch.einsum("rhg,rnhg->rhn", vectors, by_head)  # (R, H, N)
        else:
            dotted = vectors @ geometry.transpose(1, 2)  # (R, H, N)
        return F.relu(dotted) if self.kind == "independent" else dotted


class NormalizedGeometrySelfAttention(nn.Module):
    """Encoder slot: E = norm(Q) K^T / sqrt(d) + phi of the pairs' geometry."""

    def __init__(self, config: NormalizedGeometryConfig) -> None:
        super().__init__()
        self.attention = NormalizedAttention(config)
        self.geometry = nn.ModuleList(PairBias(config, kind) for kind in config.geometry)

    def forward(self, x: Tensor, image: GeometryRows) -> Tensor:
        bias = None
        if image.pairs is not None:
            biases = [kind(x, image.pairs) for kind in self.geometry]
            bias = torch.stack(biases).sum(dim=0) if len(biases) > 1 else biases[0]  # (B, H, N, N)
        rows = self.attention.project_rows(x, image.mask)
        attended: Tensor = self.attention(x, rows, image.mask[:, None], bias)
        return attended


def relative_places(boxes: Tensor, sizes: Tensor) -> Tensor:
    """(cx / W, cy / H, w / W, h / H) of boxes (B, N, 4) in images of sizes (B, 2): (B, N, 4)."""
    scaled = boxes / sizes.repeat(1, 2)[:, None]  # (B, N, 4) in 0..1
    low, high = scaled[..., :2], scaled[..., 2:]  # (B, N, 2) each
    return torch.cat([(low + high) / 2, high - low], dim=-1)


def place_sinusoids(places: Tensor, width: int) -> Tensor:
    """Places (B, N, 4) in 0..1 as sines and cosines (B, N, D), a quarter of D for each number."""
    pairs = width // 8
    channel = torch.arange(pairs, device=places.device) / pairs  # (D / 8,)
    angle = SINUSOID_SCALE * places[..., None] * torch.exp(channel * -math.log(10000.0))
    waves = torch.cat([angle.sin(), angle.cos()], dim=-1)  # (B, N, 4, D / 4)
    return waves.flatten(2)


class GeometryInput(FeatureInput):
    """dropout(ReLU(W x + b)), with the places of the rows where a variant wants them."""

    def __init__(self, config: NormalizedGeometryConfig, in_width: int) -> None:
        super().__init__(in_width, config.width, config.dropout, config.boxes, norm=False)
        self.stream = config.stream
        self.needs: tuple[str, ...] = (config.stream,)
        self.pairs = bool(config.geometry)
        self.absolute = config.absolute
        self.embed = nn.Linear(4, config.width) if config.absolute == "embedding" else None

    def forward(self, features: Features) -> tuple[Tensor, GeometryRows]:  # type: ignore[override]
        """Rows (B, N, D) and what attention sees beside them.

        Raises CaptionError when places are wanted of a stream that has no boxes.
        """
        wanted = self.pairs or self.absolute != "none" or self.place is not None
        located = features.located(self.stream) if wanted else None
        x = super().forward(features.rows[self.stream], located)  # (B, N, D)
        if located is not None and self.absolute != "none":
            places = relative_places(*located)  # (B, N, 4)
            if self.embed is not None:
                x = x + self.embed(places)  # (B, N, D)
            else:
                x = x + place_sinusoids(places, x.shape[-1])  # (B, N, D)
        pairs = pair_geometry(located[0]) if located is not None and self.pairs else None
        return x, GeometryRows(features.mask[self.stream], pairs)


SLOTS = Slots(input=GeometryInput, self_attention=NormalizedGeometrySelfAttention)


_SAN: dict[str, Any] = {"normalize": "none", "geometry": ()}
VARIANTS: dict[str, dict[str, Any]] = {
    "san": _SAN,
    "normalized": {"geometry": ()},
    "normalized_affine": {"geometry": (), "norm": "instance-affine"},
    "normalized_layer": {"geometry": (), "norm": "layer"},
    "normalized_batch": {"geometry": (), "norm": "batch"},
    "normalized_keys": {"geometry": (), "normalize": "key"},
    "normalized_both": {"geometry": (), "normalize": "both"},
    "geometry": {"normalize": "none"},
    "geometry_independent": {"normalize": "none", "geometry": ("independent",)},
    "geometry_keys": {"normalize": "none", "geometry": ("key",)},
    "geometry_summed": {"normalize": "none", "geometry": ("independent", "query", "key")},
    "geometry_per_head": {"normalize": "none", "geometry_per_head": True},
    "absolute": {**_SAN, "absolute": "embedding"},
    "absolute_sinusoid": {**_SAN, "absolute": "sinusoid"},
}
