"""The Transformer captioner: one encoder-decoder skeleton with two slots.

A paper's model fills slots: the encoder's self-attention, the decoder's cross-attention, and
the wiring that says which encoder levels a decoder layer reads through it. Plain modules for all
stand here (Vaswani et al., 2017, as captioners use it: rows of an image in, sinusoidal positions
on the words only).

Legend: B images, N rows of an image, R captions or beams (grouped by image), T words, D width,
V vocabulary, L layers, W words that are predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor, nn

from caption.blocks import (
    AddNorm,
    Attention,
    AttentionOnAttention,
    FeatureInput,
    FeedForward,
    KeysValues,
    by_row,
    causal_mask,
    sinusoids,
)
from caption.captioner import Captioner, TrainingPass
from caption.config import choice
from caption.errors import CaptionError
from caption.features import Features
from caption.vocabulary import PAD
from caption.word_vectors import VectorOutput, VectorWords


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of the skeleton; the defaults are the 3+3-layer baseline of the M2 paper."""

    stream: str = "grids"  # the feature stream that is read
    boxes: bool = False  # add each row's box to its features (absolute position)
    width: int = 512  # D
    heads: int = 8  # H
    head_width: int | None = None  # of keys and queries; by default D / H
    value_width: int | None = None  # of a head's values; by default that of its keys
    attention_on_attention: bool = False  # gate the result of every attention by its query
    feed_forward: int = 2048  # inner width of the feed-forward layers
    encoder_layers: int = 3
    decoder_layers: int = 3
    dropout: float = 0.1  # after attention, after and inside feed-forward, on the input
    max_words: int = 54  # longest caption the position table serves
    double_norm: bool = False  # a second add-and-norm around every attention (DLCT, S2, DIFNet)
    output_bias: bool = False  # a bias for each word behind the last linear map
    positions: str = "sinusoids"  # of words; or `random`: a fixed random table (M2's release)
    vectors: int | None = None  # width of given, frozen word vectors (GloVe: 300); null: learned

    def __post_init__(self) -> None:
        if self.head_width is None and self.width % self.heads:
            raise CaptionError(
                f"model.width is {self.width}, wanted a multiple of model.heads ({self.heads})"
            )
        choice("model.positions", self.positions, ("sinusoids", "random"))
        if self.vectors is not None and self.vectors < 1:
            raise CaptionError(f"model.vectors is {self.vectors}, wanted 1 or more, or null")
        if not 0 <= self.dropout < 1:
            raise CaptionError(f"model.dropout is {self.dropout}, wanted 0 <= dropout < 1")

    @property
    def streams(self) -> tuple[str, ...]:
        """The feature streams that the captioner reads."""
        return (self.stream,)


@dataclass(frozen=True)
class ImageRows:
    """What encoder attention sees beside the rows themselves."""

    mask: Tensor  # (B, N) True on real rows


@dataclass(frozen=True)
class Memory:
    """The encoder's answer: the output of every layer, and which rows are real."""

    levels: tuple[Tensor, ...]  # L x (B, N, D)
    mask: Tensor  # (B, N)


@dataclass(frozen=True)
class Source:
    """One encoder level as a cross-attention reads it: projected once, read by every word."""

    rows: KeysValues  # (B, H, N, d)
    mask: Tensor  # (B, N)


class Kept(Protocol):
    """What a layer keeps of the words so far: one entry per row R on the first axis."""

    def select(self, rows: Tensor) -> Any:
        """The entries at `rows` (R',)."""


@dataclass(frozen=True)
class LayerState:
    """What one decoder layer keeps of the words so far."""

    words: KeysValues  # of the self-attention (R, H, t, d)
    context: Kept | None  # of the cross-attention, where it has a history

    def select(self, rows: Tensor) -> LayerState:
        """The entries at `rows` (R',)."""
        context = None if self.context is None else self.context.select(rows)
        return LayerState(self.words.select(rows), context)


@dataclass(frozen=True)
class DecoderState:
    """What the layers keep of the words so far, and the images (never repeated per beam)."""

    layers: tuple[LayerState | None, ...]  # per layer; None before the first word
    sources: tuple[Any, ...]  # per layer, what its wiring prepared
    position: int

    def reorder(self, rows: Tensor) -> DecoderState:
        """The state of the rows at `rows` (R',); the images' part serves all rows as it is."""
        layers = tuple(None if kept is None else kept.select(rows) for kept in self.layers)
        return replace(self, layers=layers)


class RowsInput(FeatureInput):
    """The model's first part, plain: one stream's rows to model width."""

    def __init__(self, config: TransformerConfig, in_width: int) -> None:
        super().__init__(in_width, config.width, config.dropout, config.boxes)
        self.stream = config.stream
        self.needs: tuple[str, ...] = (config.stream,)

    def forward(self, features: Features) -> tuple[Tensor, ImageRows]:  # type: ignore[override]
        """Rows (B, N, D) and what attention sees beside them."""
        located = None if self.place is None else features.located(self.stream)
        x = super().forward(features.rows[self.stream], located)  # (B, N, D)
        return x, ImageRows(features.mask[self.stream])


def attention_of(config: TransformerConfig) -> Attention:
    """The attention that the configuration asks for, the same in every slot."""
    kind = AttentionOnAttention if config.attention_on_attention else Attention
    return kind(config.width, config.heads, config.head_width, config.value_width)


class PlainSelfAttention(nn.Module):
    """Encoder slot, plain: every row attends to every real row of its image."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = attention_of(config)

    def source(self, x: Tensor, image: ImageRows) -> tuple[KeysValues, Tensor]:
        """What the rows (B, N, D) attend to, and which of it is real (B, N)."""
        return self.attention.project(x), image.mask

    def forward(self, x: Tensor, image: ImageRows) -> Tensor:
        source, mask = self.source(x, image)
        attended: Tensor = self.attention(x, source, mask[:, None])  # (B, N, D)
        return attended

    def weights(self, x: Tensor, image: ImageRows) -> Tensor:
        """The attention weights (B, H, N, N)."""
        source, mask = self.source(x, image)
        return self.attention.weights(x, source, mask[:, None])


class PlainCrossAttention(nn.Module):
    """Decoder slot, plain: words attend to the rows of one encoder level."""

    def __init__(self, config: TransformerConfig, *, add_norm: bool = True) -> None:
        """Without `add_norm` the result is what was attended to, for a wiring that adds it."""
        super().__init__()
        self.attention = attention_of(config)
        self.add_norm = (
            AddNorm(config.width, config.dropout, config.double_norm) if add_norm else None
        )

    def prepare(self, level: Tensor, mask: Tensor) -> Source:
        """Keys and values of an encoder level (B, N, D), its real rows (B, N)."""
        return Source(self.attention.project(level), mask)

    def forward(self, x: Tensor, source: Source, past: Kept | None) -> tuple[Tensor, Kept | None]:
        """Words (R, T, D), R / B rows per image, to (R, T, D); there is no history to keep."""
        images = source.mask.shape[0]
        queries = x.reshape(images, -1, x.shape[-1])  # (B, R/B T, D)
        attended = self.attention(queries, source.rows, source.mask[:, None])  # (B, R/B T, D)
        attended = attended.reshape(x.shape)  # (R, T, D)
        return attended if self.add_norm is None else self.add_norm(x, attended), None

    def weights(self, x: Tensor, source: Source, past: Kept | None) -> tuple[Tensor, None]:
        """The attention weights (R, H, T, N) on the image's rows; none are on a history."""
        queries = x.reshape(source.mask.shape[0], -1, x.shape[-1])  # (B, R/B T, D)
        weights = self.attention.weights(queries, source.rows, source.mask[:, None])
        return by_row(weights, x.shape[1]), None  # (R, H, T, N)


class OneLevel(nn.Module):
    """Wiring: a decoder layer reads one encoder level, by default the last."""

    def __init__(self, level: int = -1) -> None:
        super().__init__()
        self.level = level

    def prepare(self, attention: nn.Module, memory: Memory) -> Any:
        """The level as the layer's cross-attention wants it, once per image."""
        return attention.prepare(memory.levels[self.level], memory.mask)  # type: ignore[operator]

    def forward(
        self, attention: nn.Module, x: Tensor, source: Any, past: Kept | None
    ) -> tuple[Tensor, Kept | None]:
        """Words (R, T, D) through the cross-attention; also what it keeps of them."""
        read: tuple[Tensor, Kept | None] = attention(x, source, past)
        return read


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with add-and-norm."""

    def __init__(self, config: TransformerConfig, self_attention: nn.Module) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.add_norm = AddNorm(config.width, config.dropout, config.double_norm)
        self.feed_forward = FeedForward(config.width, config.feed_forward, config.dropout)

    def forward(self, x: Tensor, image: ImageRows) -> Tensor:
        x = self.add_norm(x, self.self_attention(x, image))  # (B, N, D)
        out: Tensor = self.feed_forward(x)  # (B, N, D)
        return out


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention through its wiring, feed-forward."""

    def __init__(self, config: TransformerConfig, slots: Slots, layer: int) -> None:
        super().__init__()
        self.self_attention = slots.word_attention(config)
        self.add_norm = AddNorm(config.width, config.dropout, config.double_norm)
        self.cross_attention = slots.cross_attention(config)
        self.wiring = slots.wiring(config, layer)
        self.feed_forward = FeedForward(config.width, config.feed_forward, config.dropout)

    def prepare(self, memory: Memory) -> Any:
        """The images as this layer reads them, computed once."""
        return self.wiring.prepare(self.cross_attention, memory)

    def forward(self, x: Tensor, source: Any, past: LayerState | None) -> tuple[Tensor, LayerState]:
        """Words (R, T, D) behind `past`; also what the layer keeps of all words so far."""
        words = self.self_attention.project(x)
        words = words if past is None else past.words.append(words)
        length = x.shape[1]
        mask = causal_mask(length, x.device) if length > 1 else None  # one word sees all before
        x = self.add_norm(x, self.self_attention(x, words, mask))  # (R, T, D)
        context = None if past is None else past.context
        x, context = self.wiring(self.cross_attention, x, source, context)  # (R, T, D)
        return self.feed_forward(x), LayerState(words, context)


def _positions(config: TransformerConfig) -> Tensor:
    table = sinusoids(config.max_words + 1, config.width)
    return table if config.positions == "sinusoids" else nn.init.xavier_uniform_(table)


def _last_level(config: TransformerConfig, layer: int) -> OneLevel:
    return OneLevel()


@dataclass(frozen=True, kw_only=True)
class Slots:
    """What a paper's model puts in place of the plain parts; each is called once per layer."""

    input: Callable[[Any, int], nn.Module] = RowsInput  # (config, in_width); once per model
    self_attention: Callable[[Any], nn.Module] = PlainSelfAttention  # of the encoder
    word_attention: Callable[[Any], Any] = attention_of  # masked self-attention of the decoder
    cross_attention: Callable[[Any], nn.Module] = PlainCrossAttention
    wiring: Callable[[Any, int], Any] = _last_level  # (config, decoder layer)


class Transformer(Captioner):
    """Rows of an image to captions; the slots decide which paper's model it is."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        in_width: int,
        vocabulary: int,
        slots: Slots | None = None,
    ) -> None:
        """`in_width` is the stream's width, `vocabulary` the number of entries."""
        super().__init__()
        slots = slots or Slots()
        self.config = config
        features: Any = slots.input(config, in_width)
        self.needs: tuple[str, ...] = features.needs
        self.features = features
        self.encoder = nn.ModuleList(
            EncoderLayer(config, slots.self_attention(config)) for _ in range(config.encoder_layers)
        )
        self.words: nn.Embedding | VectorWords
        if config.vectors is None:
            self.words = nn.Embedding(vocabulary, config.width, padding_idx=PAD)
        else:
            self.words = VectorWords(vocabulary, config.vectors, config.width)
        self.positions: Tensor
        self.register_buffer("positions", _positions(config))  # (max_words + 1, D)
        self.decoder = nn.ModuleList(
            DecoderLayer(config, slots, layer) for layer in range(config.decoder_layers)
        )
        self.output: nn.Linear | VectorOutput
        if isinstance(self.words, VectorWords):
            self.output = VectorOutput(self.words, config.width, config.output_bias)
        else:
            self.output = nn.Linear(config.width, vocabulary, bias=config.output_bias)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def encode(self, features: Features) -> Memory:
        x, image = self.features(features)  # (B, N, D)
        levels = []
        for layer in self.encoder:
            x = layer(x, image)  # (B, N, D)
            levels.append(x)
        return Memory(tuple(levels), image.mask)

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        hidden, _ = self.decode(tokens, self.start(memory))  # (R, T, D)
        logits: Tensor = self.output(hidden)  # (R, T, V)
        return logits

    def training_pass(self, memory: Memory, tokens: Tensor, valid: Tensor) -> TrainingPass:
        """The vocabulary's map, the widest of all, is spared where nothing is predicted."""
        hidden, _ = self.decode(tokens, self.start(memory))  # (R, T, D)
        return TrainingPass(self.output(hidden[valid]))  # (W, V)

    def start(self, memory: Memory) -> DecoderState:
        sources = tuple(layer.prepare(memory) for layer in self.decoder)  # type: ignore[operator]
        return DecoderState(layers=(None,) * len(self.decoder), sources=sources, position=0)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        hidden, state = self.decode(tokens[:, None], state)  # (R, 1, D)
        return self.output(hidden[:, 0]).log_softmax(dim=-1), state  # (R, V)

    def decode(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Hidden states (R, T, D) of tokens (R, T) that follow the state's words."""
        first, last = state.position + 1, state.position + tokens.shape[1]
        if last > self.config.max_words:
            raise CaptionError(
                f"a caption of {last} tokens, but model.max_words is {self.config.max_words};"
                " cut captions (data.max_words) or train with a larger model.max_words"
            )
        x = self.words(tokens) + self.positions[first : last + 1]  # (R, T, D)
        kept = []
        for layer, source, past in zip(self.decoder, state.sources, state.layers, strict=True):
            x, now = layer(x, source, past)
            kept.append(now)
        return x, replace(state, layers=tuple(kept), position=last)


def count_parameters(model: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
