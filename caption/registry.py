"""Captioners by name: their configuration and how to build them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from caption.captioner import Captioner
from caption.errors import CaptionError
from caption.models.context_assisted import CATConfig, ContextAssistedTransformer
from caption.transformer import Transformer, TransformerConfig


@dataclass(frozen=True)
class Entry:
    """A registered captioner: `build(config, widths, vocabulary)` makes it."""

    config: type
    build: Callable[[Any, Mapping[str, int], int], Captioner]
    about: str


def stream_width(widths: Mapping[str, int], stream: str) -> int:
    """The width of a stream of a cache. Raises CaptionError naming the streams there are."""
    if stream not in widths:
        raise CaptionError(
            f"the model reads the stream {stream!r}, the cache has"
            f" {', '.join(sorted(widths)) or 'none'}; type"
            f" -o model.stream={next(iter(widths), '...')} or extract the stream"
        )
    return widths[stream]


def _transformer(
    config: TransformerConfig, widths: Mapping[str, int], vocabulary: int
) -> Captioner:
    in_width = stream_width(widths, config.stream)
    return Transformer(config, in_width=in_width, vocabulary=vocabulary)


def _cat(config: CATConfig, widths: Mapping[str, int], vocabulary: int) -> Captioner:
    in_width = stream_width(widths, config.stream)
    return ContextAssistedTransformer(config, in_width=in_width, vocabulary=vocabulary)


MODELS: dict[str, Entry] = {
    "transformer": Entry(TransformerConfig, _transformer, "the plain Transformer, post-norm"),
    "cat": Entry(CATConfig, _cat, "CAT and LightCAT: cross-attention with history"),
}


def entry(name: str) -> Entry:
    """The captioner of that name. Raises CaptionError with the nearest name."""
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CaptionError(f"no captioner {name!r}; there are {', '.join(MODELS)}{hint}")
    return MODELS[name]
