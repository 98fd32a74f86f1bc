"""The Meshed-Memory Transformer (M2).

Cornia, Stefanini, Baraldi, Cucchiara, "Meshed-Memory Transformer for Image Captioning" (CVPR
2020). What it adds to the Transformer: learned memory slots beside the keys and values of the
encoder's self-attention, and a decoder whose layers read every encoder level through gates.

Where the text and the release differ, the release is the default, since the published numbers
come from it; a switch gives the text. Two habits of the release have a switch of their own and
are off unless a recipe or an imported checkpoint wants them: images padded or cut to 50 rows whose
padding takes part in attention, and a fixed random position table.

Legend: B images, N rows of an image, R captions or beams, T words, D width, H heads, d width of a
head, m memory slots, L encoder levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from caption.blocks import AddNorm, KeysValues
from caption.config import choice
from caption.errors import CaptionError
from caption.features import Features
from caption.transformer import (
    ImageRows,
    Kept,
    Memory,
    OneLevel,
    PlainCrossAttention,
    PlainSelfAttention,
    RowsInput,
    Slots,
    TransformerConfig,
)

WIRINGS = ("meshed", "one_to_one", "gated_one_to_one", "last")


@dataclass(frozen=True, kw_only=True)
class MeshedMemoryConfig(TransformerConfig):
    """The model of the paper; every row of its ablations is a change of a few keys."""

    stream: str = "regions"
    memory: int = 40  # m, slots of each encoder layer; 0: plain self-attention
    wiring: str = "meshed"  # which encoder levels a decoder layer reads; see WIRINGS
    gate: str = "sigmoid"  # or `softmax`, over the levels
    norm: str = "levels"  # add-and-norm of each level (release); `sum`: of their sum (equation 9)
    rows: int | None = None  # pad or cut every image to so many rows (release: 50)
    attend_padding: bool = False  # padded rows take part in attention (release); needs `rows`

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("model.wiring", self.wiring, WIRINGS)
        choice("model.gate", self.gate, ("sigmoid", "softmax"))
        choice("model.norm", self.norm, ("levels", "sum"))
        if self.memory < 0:
            raise CaptionError(f"model.memory is {self.memory}, wanted 0 or more slots")
        if self.rows is not None and self.rows < 1:
            raise CaptionError(f"model.rows is {self.rows}, wanted 1 or more")
        if self.attend_padding and self.rows is None:
            raise CaptionError(
                "model.attend_padding is true without model.rows: captions of an image would"
                " depend on the other images of its batch; set model.rows=50"
            )
        if "one_to_one" in self.wiring and self.encoder_layers != self.decoder_layers:
            raise CaptionError(
                f"model.wiring is {self.wiring!r} with {self.encoder_layers} encoder and"
                f" {self.decoder_layers} decoder layers, wanted as many of each"
            )
        if self.norm == "sum" and self.wiring in ("one_to_one", "last"):
            raise CaptionError(
                f"model.norm is 'sum', but wiring {self.wiring!r} sums no levels; wanted 'levels'"
            )


class MemoryAugmentedAttention(PlainSelfAttention):
    """Encoder slot: keys [X Wk; Mk] and values [X Wv; Mv], queries unchanged (equation 5).

    The slots stand behind the projections and are scaled by sqrt(d) and sqrt(m) (release); they
    are never masked.
    """

    def __init__(self, config: MeshedMemoryConfig) -> None:
        super().__init__(config)
        self.slots = config.memory
        keys, values = self.attention.key.out_features, self.attention.value.out_features
        # three dimensions, so that the model's Xavier initialisation gives them the release's scale
        self.memory_keys = nn.Parameter(torch.empty(1, config.memory, keys))  # (1, m, H d)
        self.memory_values = nn.Parameter(torch.empty(1, config.memory, values))  # (1, m, H d)
        nn.init.xavier_uniform_(self.memory_keys)
        nn.init.xavier_uniform_(self.memory_values)

    def memory(self) -> KeysValues:
        """The slots as keys and values, one entry for all images."""
        keys = self.attention.split(self.memory_keys)  # (1, H, m, d)
        values = self.attention.split(self.memory_values)  # (1, H, m, d)
        return KeysValues(keys * math.sqrt(keys.shape[-1]), values * math.sqrt(self.slots))

    def source(self, x: Tensor, image: ImageRows) -> tuple[KeysValues, Tensor]:
        """The image's rows (B, N, D) and behind them the slots, and which are real (B, N + m)."""
        slots, images = self.memory(), len(x)
        both = self.attention.project(x).append(
            KeysValues(
                slots.keys.expand(images, -1, -1, -1),  # (B, H, m, d)
                slots.values.expand(images, -1, -1, -1),  # (B, H, m, d)
            )
        )  # (B, H, N + m, d)
        return both, F.pad(image.mask, (0, self.slots), value=True)


@dataclass(frozen=True)
class KeptLevels:
    """What the cross-attention keeps of the words so far at each encoder level."""

    levels: tuple[Kept | None, ...]

    def select(self, rows: Tensor) -> KeptLevels:
        """The entries at `rows` (R',)."""
        return KeptLevels(tuple(None if k is None else k.select(rows) for k in self.levels))


class Mesh(nn.Module):
    """Wiring: one cross-attention reads several levels, gates weigh what it found (equation 7).

    alpha_i = sigmoid([S, C_i] W_i + b_i);  mesh = sum_i alpha_i * C_i / sqrt(L), where C_i is
    S behind the cross-attention to level i. With softmax gates the alpha_i of an element sum to 1
    over the levels.
    """

    def __init__(self, config: MeshedMemoryConfig, levels: tuple[int, ...]) -> None:
        super().__init__()
        self.levels = levels
        self.softmax = config.gate == "softmax"
        self.gates = nn.ModuleList(nn.Linear(2 * config.width, config.width) for _ in levels)
        for gate in self.gates:
            nn.init.zeros_(gate.bias)  # type: ignore[arg-type]
        normed = config.norm == "sum"
        self.add_norm = AddNorm(config.width, config.dropout) if normed else None

    def prepare(self, attention: nn.Module, memory: Memory) -> tuple[Any, ...]:
        """Every level as the cross-attention wants it, once per image."""
        prepare: Any = attention.prepare
        return tuple(prepare(memory.levels[level], memory.mask) for level in self.levels)

    def alphas(self, x: Tensor, contexts: list[Tensor]) -> Tensor:
        """The gates (L, R, T, D) of the levels' contexts, each (R, T, D) like the words x."""
        logits = torch.stack(
            [
                gate(torch.cat([x, context], dim=-1))
                for gate, context in zip(self.gates, contexts, strict=True)
            ]
        )  # (L, R, T, D)
        return logits.softmax(dim=0) if self.softmax else logits.sigmoid()

    def forward(
        self, attention: nn.Module, x: Tensor, sources: tuple[Any, ...], past: KeptLevels | None
    ) -> tuple[Tensor, KeptLevels | None]:
        """Words (R, T, D) through the cross-attention at every level; also what it keeps."""
        before = (None,) * len(sources) if past is None else past.levels
        contexts, kept = [], []
        for source, one in zip(sources, before, strict=True):
            context, now = attention(x, source, one)  # (R, T, D)
            contexts.append(context)
            kept.append(now)
        alphas = self.alphas(x, contexts)  # (L, R, T, D)
        mixed = (alphas * torch.stack(contexts)).sum(dim=0) / math.sqrt(len(contexts))  # (R, T, D)
        if self.add_norm is not None:
            mixed = self.add_norm(x, mixed)  # (R, T, D)
        history = any(one is not None for one in kept)
        return mixed, KeptLevels(tuple(kept)) if history else None


class FixedRows(RowsInput):
    """The model's first part with images padded or cut to the same number of rows."""

    def __init__(self, config: MeshedMemoryConfig, in_width: int) -> None:
        super().__init__(config, in_width)
        self.rows, self.attend_padding = config.rows, config.attend_padding

    def forward(  # type: ignore[override]
        self, features: Features
    ) -> tuple[Tensor, ImageRows]:
        """Rows (B, N, D) and what attention sees beside them."""
        if self.rows is None:
            return super().forward(features)
        x, image = super().forward(self.fixed(features, self.rows))  # (B, rows, D)
        if self.attend_padding:
            image = replace(image, mask=torch.ones_like(image.mask))
        return x, image

    def fixed(self, features: Features, rows: int) -> Features:
        """The stream with the first `rows` rows of each image, filled up with rows of zeros."""
        stream = self.stream
        mask = features.mask[stream]  # (B, N)
        more = rows - mask.shape[1]  # below 0 where rows are cut
        values = features.rows[stream].masked_fill(~mask[..., None], 0.0)  # (B, N, in_width)
        return replace(
            features,
            rows={stream: F.pad(values, (0, 0, 0, more))},  # (B, rows, in_width)
            mask={stream: F.pad(mask, (0, more), value=False)},  # (B, rows)
            boxes={  # (B, rows, 4)
                name: F.pad(boxes, (0, 0, 0, more))
                for name, boxes in features.boxes.items()
                if name == stream
            },
        )


def self_attention(config: MeshedMemoryConfig) -> nn.Module:
    """The encoder's slot."""
    return MemoryAugmentedAttention(config) if config.memory else PlainSelfAttention(config)


def cross_attention(config: MeshedMemoryConfig) -> nn.Module:
    """The decoder's slot: add-and-norm stands in it, or around the sum of the levels."""
    return PlainCrossAttention(config, add_norm=config.norm == "levels")


def wiring(config: MeshedMemoryConfig, layer: int) -> nn.Module:
    """Which encoder levels the decoder layer reads."""
    if config.wiring == "meshed":
        return Mesh(config, tuple(range(config.encoder_layers)))
    if config.wiring == "gated_one_to_one":
        return Mesh(config, (layer,))
    return OneLevel(layer if config.wiring == "one_to_one" else -1)


SLOTS = Slots(
    input=FixedRows,
    self_attention=self_attention,
    cross_attention=cross_attention,
    wiring=wiring,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"gate": "softmax"},
    "no_memory": {"memory": 0},
    "one_to_one": {"wiring": "one_to_one"},
    "one_to_one_no_memory": {"wiring": "one_to_one", "memory": 0},
    "gated_one_to_one": {"wiring": "gated_one_to_one"},
    "last": {"wiring": "last", "memory": 0},
    "six_layers": {"encoder_layers": 6, "decoder_layers": 6},
    "norm_of_sum": {"norm": "sum"},
    "attention_on_attention": {"attention_on_attention": True},
    "word_vectors": {"vectors": 6},
    "release": {"rows": 7, "attend_padding": True, "positions": "random"},
}
