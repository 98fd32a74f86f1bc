"""The Transformer captioner: one encoder-decoder skeleton with two slots.

The slots are the encoder's self-attention and the decoder's cross-attention; a paper's model
fills them with its own modules. Plain modules for both stand here (Vaswani et al., 2017, as
captioners use it: rows of an image in, sinusoidal positions on the words only).

Legend: B images, N rows of an image, R captions or beams (grouped by image), T words, D width,
V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from caption.blocks import (
    AddNorm,
    Attention,
    FeatureInput,
    FeedForward,
    KeysValues,
    causal_mask,
    sinusoids,
)
from caption.captioner import Captioner
from caption.errors import CaptionError
from caption.features import Features
from caption.vocabulary import PAD


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of the skeleton; the defaults are the 3+3-layer baseline of the M2 paper."""

    stream: str = "grids"  # the feature stream that is read
    boxes: bool = False  # add each row's box to its features (absolute position)
    width: int = 512  # D
    heads: int = 8  # H
    feed_forward: int = 2048  # inner width of the feed-forward layers
    encoder_layers: int = 3
    decoder_layers: int = 3
    dropout: float = 0.1  # after attention, after and inside feed-forward, on the input
    max_words: int = 54  # longest caption the position table serves

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise CaptionError(
                f"model.width is {self.width}, wanted a multiple of model.heads ({self.heads})"
            )
        if not 0 <= self.dropout < 1:
            raise CaptionError(f"model.dropout is {self.dropout}, wanted 0 <= dropout < 1")


@dataclass(frozen=True)
class ImageRows:
    """What encoder attention sees beside the rows themselves."""

    mask: Tensor  # (B, N) True on real rows
    boxes: Tensor  # (B, N, 4) pixels
    sizes: Tensor  # (B, 2) pixels


@dataclass(frozen=True)
class Memory:
    """The encoder's answer: the output of every layer, and which rows are real."""

    levels: tuple[Tensor, ...]  # L x (B, N, D)
    mask: Tensor  # (B, N)


@dataclass(frozen=True)
class Source:
    """One decoder layer's view of the images: projected once, read by every word."""

    rows: KeysValues  # (B, H, N, d)
    mask: Tensor  # (B, N)


@dataclass(frozen=True)
class DecoderState:
    """Keys and values of the words so far, and of the images (never repeated per beam)."""

    words: tuple[KeysValues | None, ...]  # per layer (R, H, t, d); None before the first word
    sources: tuple[Source, ...]  # per layer
    position: int

    def reorder(self, rows: Tensor) -> DecoderState:
        """The state of the rows at `rows` (R',); the images' part serves all rows as it is."""
        words = tuple(None if kept is None else kept.select(rows) for kept in self.words)
        return replace(self, words=words)


class PlainSelfAttention(nn.Module):
    """Encoder slot, plain: every row attends to every real row of its image."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads)

    def forward(self, x: Tensor, image: ImageRows) -> Tensor:
        attended: Tensor = self.attention(x, self.attention.project(x), image.mask[:, None])
        return attended


class PlainCrossAttention(nn.Module):
    """Decoder slot, plain: words attend to the last encoder level."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads)
        self.add_norm = AddNorm(config.width, config.dropout)

    def prepare(self, memory: Memory) -> Source:
        """Keys and values of the images."""
        return Source(self.attention.project(memory.levels[-1]), memory.mask)

    def forward(self, x: Tensor, source: Source) -> Tensor:
        """Words (R, T, D), R / B rows per image, to (R, T, D)."""
        images = source.mask.shape[0]
        queries = x.reshape(images, -1, x.shape[-1])  # (B, R/B T, D)
        attended = self.attention(queries, source.rows, source.mask[:, None])  # (B, R/B T, D)
        normed: Tensor = self.add_norm(x, attended.reshape(x.shape))  # (R, T, D)
        return normed


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with add-and-norm."""

    def __init__(self, config: TransformerConfig, self_attention: nn.Module) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.add_norm = AddNorm(config.width, config.dropout)
        self.feed_forward = FeedForward(config.width, config.feed_forward, config.dropout)

    def forward(self, x: Tensor, image: ImageRows) -> Tensor:
        x = self.add_norm(x, self.self_attention(x, image))  # (B, N, D)
        out: Tensor = self.feed_forward(x)  # (B, N, D)
        return out


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward."""

    def __init__(self, config: TransformerConfig, cross_attention: nn.Module) -> None:
        super().__init__()
        self.self_attention = Attention(config.width, config.heads)
        self.add_norm = AddNorm(config.width, config.dropout)
        self.cross_attention = cross_attention
        self.feed_forward = FeedForward(config.width, config.feed_forward, config.dropout)

    def forward(
        self, x: Tensor, source: Source, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        """Words (R, T, D) behind `past`; also the keys and values of all words so far."""
        words = self.self_attention.project(x)
        words = words if past is None else past.append(words)
        length = x.shape[1]
        mask = causal_mask(length, x.device) if length > 1 else None  # one word sees all before
        x = self.add_norm(x, self.self_attention(x, words, mask))  # (R, T, D)
        x = self.cross_attention(x, source)  # (R, T, D)
        return self.feed_forward(x), words


Slot = Callable[[TransformerConfig], nn.Module]


class Transformer(Captioner):
    """Rows of an image to captions; the slots decide which paper's model it is."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        in_width: int,
        vocabulary: int,
        self_attention: Slot = PlainSelfAttention,
        cross_attention: Slot = PlainCrossAttention,
    ) -> None:
        """`in_width` is the stream's width, `vocabulary` the number of entries."""
        super().__init__()
        self.config = config
        self.needs = (config.stream,)
        self.features = FeatureInput(in_width, config.width, config.dropout, config.boxes)
        self.encoder = nn.ModuleList(
            EncoderLayer(config, self_attention(config)) for _ in range(config.encoder_layers)
        )
        self.words = nn.Embedding(vocabulary, config.width, padding_idx=PAD)
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(config.max_words + 1, config.width))
        self.decoder = nn.ModuleList(
            DecoderLayer(config, cross_attention(config)) for _ in range(config.decoder_layers)
        )
        self.output = nn.Linear(config.width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def encode(self, features: Features) -> Memory:
        stream = self.config.stream
        image = ImageRows(features.mask[stream], features.boxes[stream], features.sizes)
        x = self.features(features.rows[stream], image.boxes, image.sizes)  # (B, N, D)
        levels = []
        for layer in self.encoder:
            x = layer(x, image)  # (B, N, D)
            levels.append(x)
        return Memory(tuple(levels), image.mask)

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        hidden, _ = self._decode(tokens, self.start(memory))  # (R, T, D)
        logits: Tensor = self.output(hidden)  # (R, T, V)
        return logits

    def start(self, memory: Memory) -> DecoderState:
        sources = tuple(layer.cross_attention.prepare(memory) for layer in self.decoder)  # type: ignore[operator, union-attr]
        return DecoderState(words=(None,) * len(self.decoder), sources=sources, position=0)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        hidden, state = self._decode(tokens[:, None], state)  # (R, 1, D)
        return self.output(hidden[:, 0]).log_softmax(dim=-1), state  # (R, V)

    def _decode(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Hidden states (R, T, D) of tokens (R, T) that follow the state's words."""
        first, last = state.position + 1, state.position + tokens.shape[1]
        if last > self.config.max_words:
            raise CaptionError(
                f"a caption of {last} tokens, but model.max_words is {self.config.max_words};"
                " cut captions (data.max_words) or train with a larger model.max_words"
            )
        x = self.words(tokens) + self.positions[first : last + 1]  # (R, T, D)
        kept = []
        for layer, source, past in zip(self.decoder, state.sources, state.words, strict=True):
            x, words = layer(x, source, past)
            kept.append(words)
        return x, replace(state, words=tuple(kept), position=last)


def count_parameters(model: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def no_gradients(model: nn.Module) -> list[str]:
    """Names of the parameters that the last backward pass did not reach."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (parameter.grad is None or not torch.any(parameter.grad != 0))
    ]
