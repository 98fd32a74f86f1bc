"""Presets of detectors: each public checkpoint with the numbers its features were made with.

The sources are the configurations and extraction programs of py-bottom-up-attention,
bottom-up-attention.pytorch, grid-feats-vqa and detectron2.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from extract.detector_config import (
    RULES,
    DetectorConfig,
    PixelConfig,
    ResNetConfig,
    RoiConfig,
    RpnConfig,
    Selection,
)
from extract.errors import ExtractError
from extract.images import ImageLimits, ImageRules

BACKENDS = ("torch", "detectron2")  # who runs a detector
PRECISIONS = ("float32", "bfloat16", "float16")
REGION_FEATURES = ("head", "pooled")


@dataclass(frozen=True, kw_only=True)
class DetectorPreset:
    """How a detector makes features: regions, grids and a pyramid in one pass."""

    detector: DetectorConfig
    regions: bool = True  # stream `regions`: chosen by `selection`, or at given boxes
    selection: Selection = field(default_factory=Selection)
    region_feature: str = "head"  # the last layer before the classes, or what was pooled
    grids: bool = False  # stream `grids`: the last map of stride 32, a row per cell
    grid_cells: int = 0  # cells a side after adaptive average pooling; 0: the map as it is
    pyramid: tuple[str, ...] = ()  # two maps as the streams `pyramid_high` and `pyramid_low`
    pyramid_cells: tuple[int, int] = (14, 28)  # cells a side of each, pooled likewise
    precision: str = "float32"  # of convolutions
    dtype: str = "float16"  # as stored
    batch: int = 1  # images of one shape at once: always so many
    images: ImageRules = field(default_factory=ImageRules)
    limits: ImageLimits = field(default_factory=ImageLimits)

    def __post_init__(self) -> None:
        """Raises ExtractError on values that go with no detector."""
        wanted = {
            "precision": (self.precision, PRECISIONS),
            "region_feature": (self.region_feature, REGION_FEATURES),
            "selection.rule": (self.selection.rule, RULES),
        }
        for key, (value, allowed) in wanted.items():
            if value not in allowed:
                raise ExtractError(f"{key} is {value!r}, wanted one of {', '.join(allowed)}")
        if self.regions and self.detector.roi.head == "none":
            raise ExtractError("regions is true, but the detector has no head (roi.head is none)")
        if self.regions and not self.selection.thresholds:
            raise ExtractError("selection.thresholds is empty, wanted one overlap or more")
        known = self.detector.maps
        if len(self.pyramid) not in (0, 2) or not set(self.pyramid) <= set(known):
            raise ExtractError(
                f"pyramid is {', '.join(self.pyramid)}, wanted two maps or none, of"
                f" {', '.join(known)}, the coarse one first"
            )
        if self.grids and self.region_only and self.detector.fpn_channels:
            raise ExtractError("grids of a feature pyramid are its maps: set pyramid instead")
        if self.region_feature == "pooled" and self.detector.roi.resolution != 1:
            raise ExtractError("region_feature is pooled, wanted detector.roi.resolution=1 for it")

    @property
    def region_only(self) -> bool:
        """Whether the backbone ends before the last stage."""
        return self.detector.resnet.last == "res4"

    @property
    def built(self) -> DetectorConfig:
        """What has to be built: without the parts that the streams do not need."""
        if self.regions:
            return self.detector
        if self.grids and self.region_only:
            return self.detector  # the regions' last stage makes the grid
        return replace(
            self.detector,
            resnet=replace(self.detector.resnet, res5_dilation=1),
            roi=replace(self.detector.roi, head="none"),
        )

    @property
    def maps(self) -> frozenset[str]:
        """The maps that the streams are made from, the last stage's for grids aside."""
        detector = self.detector
        used = (*detector.rpn.maps, *detector.roi.maps) if self.regions else ()
        return frozenset((*used, *self.pyramid))

    def settings(self) -> dict[str, Any]:
        """All that alters features as plain values, for a cache's meta: without the limits."""
        settings: dict[str, Any] = _plain(asdict(self))
        del settings["limits"]
        return settings


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


_CAFFE_MEAN = (102.9801, 115.9465, 122.7717)
_IMAGENET_STD = (57.375, 57.12, 58.395)
_SMALLER = {"min_size": 600, "max_size": 1000}
_TENTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

# py-bottom-up-attention: Caffe's weights in detectron2's form
_BUTD = DetectorConfig(
    pixels=PixelConfig(mean=_CAFFE_MEAN, **_SMALLER),  # type: ignore[arg-type]
    resnet=ResNetConfig(depth=101, caffe_pool=True),
    rpn=RpnConfig(sizes=((64, 128, 256, 512),), channels=512, after_nms=300),
    roi=RoiConfig(
        pooler="ROIPool", res5_dilation=2, classes=1600, attributes=400, attribute_none="last"
    ),
)
# bottom-up-attention.pytorch, mode caffe
_BUA = DetectorConfig(
    pixels=PixelConfig(mean=_CAFFE_MEAN, resize="opencv-after-mean", **_SMALLER),  # type: ignore[arg-type]
    resnet=ResNetConfig(depth=101, caffe_pool=True),
    rpn=RpnConfig(
        sizes=((4, 8, 16, 32),),
        caffe_anchors=True,
        channels=512,
        softmax=True,
        after_nms=300,
        min_size=16.0,
    ),
    roi=RoiConfig(
        pooler="ROIPool",
        res5_dilation=2,
        classes=1600,
        background_first=True,
        box_weights=(1.0, 1.0, 1.0, 1.0),
        attributes=400,
        attribute_none="first",
    ),
    plus_one=True,
)
_BUA_152 = replace(
    _BUA,
    pixels=replace(_BUA.pixels, mean=(0.0, 0.0, 0.0)),
    resnet=ResNetConfig(depth=152, caffe_pool=True, pre_activation=True, stride_in_1x1=False),
    roi=replace(_BUA.roi, res5_dilation=1),
)
# bottom-up-attention.pytorch, mode d2
_BUA_D2 = DetectorConfig(
    pixels=PixelConfig(resize="opencv", **_SMALLER),  # type: ignore[arg-type]
    resnet=ResNetConfig(depth=101),
    roi=RoiConfig(sampling=2, classes=1600, attributes=400),
)
# grid-feats-vqa
_GRID = DetectorConfig(
    pixels=PixelConfig(**_SMALLER),  # type: ignore[arg-type]
    resnet=ResNetConfig(depth=50, res5_dilation=2, last="res5"),
    rpn=RpnConfig(maps=("res5",)),
    roi=RoiConfig(
        maps=("res5",),
        resolution=1,
        sampling=2,
        head="fc",
        fc_layers=2,
        classes=1600,
        attributes=400,
    ),
)
_X101 = ResNetConfig(
    depth=101, groups=32, group_width=8, stride_in_1x1=False, res5_dilation=2, last="res5"
)
_GRID_X101 = replace(_GRID, pixels=replace(_GRID.pixels, std=_IMAGENET_STD), resnet=_X101)
_GRID_X152 = replace(_GRID, resnet=replace(_X101, depth=152))
_GRID_X152PP = replace(
    _GRID_X152,
    resnet=replace(_GRID_X152.resnet, deform=(False, False, True, True)),
    roi=replace(_GRID.roi, sampling=0),
)
# detectron2's Mask R-CNN with a feature pyramid on COCO
_FPN = DetectorConfig(
    pixels=PixelConfig(divisible=32),
    resnet=ResNetConfig(depth=50, last="res5"),
    fpn_channels=256,
    rpn=RpnConfig(
        maps=("p2", "p3", "p4", "p5", "p6"),
        sizes=((32,), (64,), (128,), (256,), (512,)),
        before_nms=1000,
    ),
    roi=RoiConfig(maps=("p2", "p3", "p4", "p5"), resolution=7, head="fc", fc_layers=2, classes=80),
)
_FPN_X101 = replace(
    _FPN,
    pixels=replace(_FPN.pixels, std=_IMAGENET_STD),
    resnet=replace(_X101, res5_dilation=1),
)
# a classifier's last map: torchvision's ResNet-101, ImageNet's mean and deviation as BGR
_C5 = DetectorConfig(
    pixels=PixelConfig(std=_IMAGENET_STD, min_size=448, max_size=1333),
    resnet=ResNetConfig(depth=101, stride_in_1x1=False, last="res5"),
    roi=RoiConfig(head="none"),
)
_DETECTIONS = Selection(rule="detections", score=0.05, least=0, most=100, thresholds=(0.5,))
_DENSE = Selection(rule="detections", score=0.0, least=0, most=100, thresholds=(0.3,))


def _grid(detector: DetectorConfig) -> DetectorPreset:
    return DetectorPreset(
        detector=detector, regions=False, selection=_DETECTIONS, grids=True, grid_cells=7
    )


def _pyramid(detector: DetectorConfig) -> DetectorPreset:
    return DetectorPreset(
        detector=detector, regions=False, selection=_DETECTIONS, pyramid=("p5", "p3")
    )


DETECTOR_PRESETS: dict[str, DetectorPreset] = {
    "butd-c4-10-100": DetectorPreset(detector=_BUTD),
    "butd-c4-36": DetectorPreset(
        detector=_BUTD,
        selection=Selection(rule="rising-nms-best-class", least=36, most=36, thresholds=_TENTHS),
    ),
    "butd-c4-50": DetectorPreset(detector=_BUTD, selection=Selection(most=50)),
    "bua-c4-10-100": DetectorPreset(detector=_BUA),
    "bua-c4-36": DetectorPreset(detector=_BUA, selection=Selection(least=36, most=36)),
    "bua-c4-50": DetectorPreset(detector=_BUA, selection=Selection(most=50)),
    "bua-c4-r152-100": DetectorPreset(detector=_BUA_152, selection=Selection(least=100, most=100)),
    "bua-d2-r50": DetectorPreset(
        detector=replace(_BUA_D2, resnet=ResNetConfig(depth=50)), selection=_DETECTIONS
    ),
    "bua-d2-r101": DetectorPreset(detector=_BUA_D2, selection=_DETECTIONS),
    "bua-d2-r101-100": DetectorPreset(detector=_BUA_D2, selection=_DENSE),
    "bua-d2-x152": DetectorPreset(
        detector=replace(
            _BUA_D2,
            resnet=ResNetConfig(depth=152, groups=32, group_width=8, stride_in_1x1=False),
            roi=replace(_BUA_D2.roi, resolution=7),
        ),
        selection=_DETECTIONS,
    ),
    "grid-r50": _grid(_GRID),
    "grid-x101": _grid(_GRID_X101),
    "grid-x152": _grid(_GRID_X152),
    "grid-x152pp": _grid(_GRID_X152PP),
    # DLCT: regions and grids of one detector
    "dlct-x101": DetectorPreset(
        detector=_GRID_X101,
        selection=Selection(rule="detections", score=0.2, least=10, most=100, thresholds=(0.5,)),
        region_feature="pooled",
        grids=True,
        grid_cells=7,
    ),
    "fpn-pyramid": _pyramid(_FPN),
    "fpn-pyramid-r101": _pyramid(replace(_FPN, resnet=replace(_FPN.resnet, depth=101))),
    "fpn-pyramid-x101": _pyramid(_FPN_X101),
    "resnet101-c5": DetectorPreset(detector=_C5, regions=False, grids=True, grid_cells=14),
}
