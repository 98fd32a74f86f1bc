"""What a detector is made of: every number that its architecture and its proposals depend on.

The defaults are detectron2's. `extract.detectron2_config` reads them from its YAML files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from extract.errors import ExtractError

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # depth -> blocks per stage
RESIZES = ("pillow", "opencv", "opencv-after-mean")
POOLERS = ("ROIPool", "ROIAlign", "ROIAlignV2")
RULES = ("confident-proposals", "detections", "rising-nms", "rising-nms-best-class")


@dataclass(frozen=True, kw_only=True)
class PixelConfig:
    """From an upright picture to the network's input; colours in the order blue, green, red."""

    mean: tuple[float, float, float] = (103.53, 116.28, 123.675)  # of 0..255
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    min_size: int = 800  # the shorter side becomes this many pixels,
    max_size: int = 1333  # unless the longer one would exceed this
    # pillow: antialiased and rounded; opencv: neither; opencv-after-mean: mean taken off first
    resize: str = "pillow"
    divisible: int = 0  # zeros at the right and the bottom up to a multiple of this


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """The residual network behind a detector."""

    depth: int = 50
    stem_channels: int = 64
    res2_channels: int = 256  # doubled by each later stage
    groups: int = 1
    group_width: int = 64
    stride_in_1x1: bool = True  # a stage's stride is in its first 1x1 convolution, else in the 3x3
    res5_dilation: int = 1  # 2: the last stage keeps its input's stride
    deform: tuple[bool, bool, bool, bool] = (False, False, False, False)  # res2 .. res5
    caffe_pool: bool = False  # the stem's pooling without padding, sizes rounded up
    pre_activation: bool = False  # norm and activation in front of convolutions, epsilon 2e-5
    last: str = "res4"  # the last stage of the backbone; res4 leaves res5 to the regions


@dataclass(frozen=True, kw_only=True)
class RpnConfig:
    """The region proposal network."""

    maps: tuple[str, ...] = ("res4",)
    sizes: tuple[tuple[float, ...], ...] = ((32, 64, 128, 256, 512),)  # of anchors, for each map
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    caffe_anchors: bool = False  # Caffe's rounded anchors; a checkpoint's own come first
    channels: int | None = None  # of the hidden layer; as many as the map has
    softmax: bool = False  # two scores an anchor and their softmax, else one logit
    before_nms: int = 6000  # best proposals of each map
    after_nms: int = 1000  # best proposals of all maps
    nms: float = 0.7
    min_size: float = 0.0  # sides of proposals, in pixels of the original


@dataclass(frozen=True, kw_only=True)
class RoiConfig:
    """What is done with each proposal."""

    maps: tuple[str, ...] = ("res4",)
    pooler: str = "ROIAlignV2"
    resolution: int = 14
    sampling: int = 0  # samples a side of a bin; 0: as many as fit
    head: str = "res5"  # or "fc": layers of `fc_width`, or "none"
    res5_dilation: int = 1
    fc_layers: int = 0
    fc_width: int = 1024
    classes: int = 80  # without the background
    background_first: bool = False  # class 0 is the background, else the last one
    box_weights: tuple[float, float, float, float] = (10.0, 10.0, 5.0, 5.0)
    attributes: int = 0  # 0: no attribute head; without "none"
    attribute_none: str = ""  # "first" or "last": where a score for no attribute stands
    attribute_hidden: int = 512
    attribute_embedding: int = 256


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """A detector; `extract.detector` builds it."""

    pixels: PixelConfig = field(default_factory=PixelConfig)
    resnet: ResNetConfig = field(default_factory=ResNetConfig)
    fpn_channels: int = 0  # 0: no feature pyramid
    rpn: RpnConfig = field(default_factory=RpnConfig)
    roi: RoiConfig = field(default_factory=RoiConfig)
    plus_one: bool = False  # Caffe's boxes, which hold their last pixel

    def __post_init__(self) -> None:
        """Raises ExtractError on a value that no detector can be built from."""
        wanted = {
            "resnet.depth": (self.resnet.depth, tuple(BLOCKS)),
            "resnet.last": (self.resnet.last, ("res4", "res5")),
            "resnet.res5_dilation": (self.resnet.res5_dilation, (1, 2)),
            "roi.res5_dilation": (self.roi.res5_dilation, (1, 2)),
            "roi.head": (self.roi.head, ("res5", "fc", "none")),
            "roi.pooler": (self.roi.pooler, POOLERS),
            "roi.attribute_none": (self.roi.attribute_none, ("", "first", "last")),
            "pixels.resize": (self.pixels.resize, RESIZES),
        }
        for key, (value, allowed) in wanted.items():
            if value not in allowed:
                names = ", ".join(str(a) or "nothing" for a in allowed)
                raise ExtractError(f"{key} is {value!r}, wanted one of {names}")
        if len(self.rpn.sizes) not in (1, len(self.rpn.maps)):
            raise ExtractError(
                f"rpn.sizes has {len(self.rpn.sizes)} lists, wanted one, or one for each of"
                f" {', '.join(self.rpn.maps)}"
            )

    @property
    def fc_inputs(self) -> int:
        """Numbers of a pooled region."""
        return self.map_channels(self.roi.maps[0]) * self.roi.resolution**2

    @property
    def feature_width(self) -> int:
        """Width of a region's feature."""
        if self.roi.head == "fc" and self.roi.fc_layers:
            return self.roi.fc_width
        return self.fc_inputs if self.roi.head == "fc" else 8 * self.resnet.res2_channels

    @property
    def maps(self) -> tuple[str, ...]:
        """Names of all maps."""
        last = int(self.resnet.last[3:])
        names = [f"res{level}" for level in range(2, last + 1)]
        if self.fpn_channels:
            names += [f"p{level}" for level in range(2, last + 2)]
        return tuple(names)

    def map_channels(self, name: str) -> int:
        """Channels of a feature map by its name, `res2` to `res5` or `p2` to `p6`."""
        if name.startswith("p"):
            return self.fpn_channels
        return int(self.resnet.res2_channels * 2 ** (int(name[3:]) - 2))

    def map_stride(self, name: str) -> int:
        """Pixels of the input between cells of a feature map."""
        level = int(name[-1])
        dilated = name == "res5" and self.resnet.res5_dilation == 2
        return int(2 ** (level - 1 if dilated else level))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which of the regions found are kept: a rule and its numbers.

    confident-proposals (bottom-up attention): proposals whose best score after NMS by class is
    `score` or more, at least `least` and at most `most` of them, with boxes as proposed.
    detections (detectron2): (region, class) pairs above `score` after NMS by class, the best
    `most`; one region may come several times. Where fewer than `least` are, the best `least` of
    any score (DLCT).
    rising-nms (py-bottom-up-attention): as detections, with each of `thresholds` in turn until
    there are exactly `most`.
    rising-nms-best-class: regions by their best class, NMS over all of them, with each of
    `thresholds` in turn until there are `least` or more; the best `most`.
    """

    rule: str = "confident-proposals"
    score: float = 0.2
    least: int = 10
    most: int = 100
    thresholds: tuple[float, ...] = (0.3,)  # of NMS: overlap above which the worse box goes
