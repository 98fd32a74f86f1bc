"""Captioners by name: their configuration and how to build them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from caption.captioner import Captioner
from caption.errors import CaptionError
from caption.models import context_assisted, meshed_memory, normalized_geometry, position_aware
from caption.models.context_assisted import (
    CATConfig,
    ContextAssistedTransformer,
    MeshedCATConfig,
)
from caption.models.meshed_memory import MeshedMemoryConfig
from caption.models.normalized_geometry import NormalizedGeometryConfig
from caption.models.position_aware import PositionAwareConfig
from caption.transformer import Slots, Transformer, TransformerConfig


@dataclass(frozen=True)
class Entry:
    """A registered captioner: `build(config, widths, vocabulary)` makes it."""

    config: type
    build: Callable[[Any, Mapping[str, int], int], Captioner]
    about: str
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> its keys


def stream_widths(config: TransformerConfig, widths: Mapping[str, int]) -> list[int]:
    """The widths of the streams that a captioner reads, of those of a cache.

    Raises CaptionError naming the streams that are missing and those there are.
    """
    streams = config.streams
    missing = [stream for stream in streams if stream not in widths]
    if missing:
        one = len(streams) == 1
        read = " and ".join(map(repr, streams))
        lacking = "" if one else f", not {' and '.join(map(repr, missing))}"
        instead = f"type -o model.stream={min(widths)}, or " if one and widths else ""
        raise CaptionError(
            f"the model reads the stream{'' if one else 's'} {read}, the cache has"
            f" {', '.join(sorted(widths)) or 'none'}{lacking}; {instead}extract with a preset that"
            f" makes {'it' if len(missing) == 1 else 'them'}: pipeline extract --list-presets"
        )
    return [widths[stream] for stream in streams]


def _filled(
    slots: Slots, kind: Callable[..., Captioner] = Transformer
) -> Callable[[Any, Mapping[str, int], int], Captioner]:
    """How to build the Transformer, or another kind of it, with a paper's slots."""

    def build(config: TransformerConfig, widths: Mapping[str, int], vocabulary: int) -> Captioner:
        in_width = stream_widths(config, widths)[0]
        return kind(config, in_width=in_width, vocabulary=vocabulary, slots=slots)

    return build


def _position_aware(
    config: PositionAwareConfig, widths: Mapping[str, int], vocabulary: int
) -> Captioner:
    in_width, low_width = [*stream_widths(config, widths), 0][:2]
    slots = position_aware.slots(config, low_width)
    return Transformer(config, in_width=in_width, vocabulary=vocabulary, slots=slots)


MODELS: dict[str, Entry] = {
    "transformer": Entry(
        TransformerConfig,
        _filled(Slots()),
        "the plain Transformer, post-norm",
        variants={
            "attention_on_attention": {"attention_on_attention": True},
            "random_positions": {"positions": "random"},
            "narrow_heads": {"head_width": 5, "value_width": 3},
            "boxes": {"boxes": True},
            "word_vectors": {"vectors": 6},
            "word_vectors_and_bias": {"vectors": 6, "output_bias": True},
        },
    ),
    "meshed_memory": Entry(
        MeshedMemoryConfig,
        _filled(meshed_memory.SLOTS),
        "the Meshed-Memory Transformer (M2)",
        variants=meshed_memory.VARIANTS,
    ),
    "cat": Entry(
        CATConfig,
        _filled(Slots(), ContextAssistedTransformer),
        "CAT and LightCAT: cross-attention that reads its own earlier contexts",
        variants=context_assisted.VARIANTS,
    ),
    "meshed_cat": Entry(
        MeshedCATConfig,
        _filled(meshed_memory.SLOTS, ContextAssistedTransformer),
        "CAT and LightCAT on the Meshed-Memory Transformer",
        variants={
            name: context_assisted.VARIANTS[name] for name in ("light", "own_second_pass", "ihc")
        },
    ),
    "normalized_geometry": Entry(
        NormalizedGeometryConfig,
        _filled(normalized_geometry.SLOTS),
        "NG-SAN: normalized and geometry-aware self-attention",
        variants=normalized_geometry.VARIANTS,
    ),
    "position_aware": Entry(
        PositionAwareConfig,
        _position_aware,
        "the position-aware Transformer on two levels of a pyramid",
        variants=position_aware.VARIANTS,
    ),
}


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every registered captioner and variant: `name` or `name/variant` -> name and its keys."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, known in MODELS.items():
        found[name] = (name, {})
        found |= {f"{name}/{one}": (name, dict(keys)) for one, keys in known.variants.items()}
    return found


def entry(name: str) -> Entry:
    """The captioner of that name. Raises CaptionError with the nearest name."""
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CaptionError(f"no captioner {name!r}; there are {', '.join(MODELS)}{hint}")
    return MODELS[name]
