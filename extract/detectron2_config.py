"""Detectron2's YAML configurations, and those of the projects on top of it, as ours.

Every key of MODEL, INPUT and TEST is one of three kinds: read here, of training or of parts that
extraction does not have (passed over), or one that must have its usual value. Anything else is an
error that names it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from extract.cache import flat
from extract.detector_config import (
    DetectorConfig,
    PixelConfig,
    ResNetConfig,
    RoiConfig,
    RpnConfig,
)
from extract.errors import ExtractError

# what training, other networks and output need
_PASSED_OVER = (
    "CUDNN_BENCHMARK DATALOADER DATASETS FLOAT32_PRECISION GLOBAL OUTPUT_DIR SEED SOLVER VERSION"
    " VIS_PERIOD INPUT.CROP INPUT.MASK_FORMAT INPUT.MAX_ATTR_PER_INS INPUT.MAX_SIZE_TRAIN"
    " INPUT.MIN_SIZE_TRAIN INPUT.MIN_SIZE_TRAIN_SAMPLING INPUT.RANDOM_FLIP"
    " MODEL.ANCHOR_GENERATOR.ANGLES MODEL.BACKBONE.FREEZE_AT MODEL.BUA.EXTRACT_FEATS"
    " MODEL.BUA.EXTRACTOR MODEL.DEVICE MODEL.EXTRACT_FEATS MODEL.EXTRACT_MODE MODEL.KEYPOINT_ON"
    " MODEL.MASK_ON MODEL.PANOPTIC_FPN MODEL.RESNETS.DEFORM_NUM_GROUPS MODEL.RETINANET"
    " MODEL.ROI_ATTRIBUTE_HEAD.LOSS_WEIGHT MODEL.ROI_BOX_CASCADE_HEAD"
    " MODEL.ROI_BOX_HEAD.BBOX_LOSS_WEIGHT MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE"
    " MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT MODEL.ROI_BOX_HEAD.CONV_DIM"
    " MODEL.ROI_BOX_HEAD.FED_LOSS_FREQ_WEIGHT_POWER MODEL.ROI_BOX_HEAD.FED_LOSS_NUM_CLASSES"
    " MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA MODEL.ROI_BOX_HEAD.TRAIN_ON_PRED_BOXES"
    " MODEL.ROI_BOX_HEAD.USE_FED_LOSS MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"
    " MODEL.ROI_HEADS.IOU_LABELS MODEL.ROI_HEADS.IOU_THRESHOLDS MODEL.ROI_HEADS.NMS_THRESH_TEST"
    " MODEL.ROI_HEADS.POSITIVE_FRACTION MODEL.ROI_HEADS.PROPOSAL_APPEND_GT"
    " MODEL.ROI_HEADS.SCORE_THRESH_TEST MODEL.ROI_KEYPOINT_HEAD MODEL.ROI_MASK_HEAD"
    " MODEL.RPN.BATCH_SIZE_PER_IMAGE MODEL.RPN.BBOX_LOSS_WEIGHT MODEL.RPN.BBOX_REG_LOSS_TYPE"
    " MODEL.RPN.BBOX_REG_LOSS_WEIGHT MODEL.RPN.BOUNDARY_THRESH MODEL.RPN.IOU_LABELS"
    " MODEL.RPN.IOU_THRESHOLDS MODEL.RPN.LOSS_WEIGHT MODEL.RPN.POSITIVE_FRACTION"
    " MODEL.RPN.POST_NMS_TOPK_TRAIN MODEL.RPN.PRE_NMS_TOPK_TRAIN MODEL.RPN.SMOOTH_L1_BETA"
    " MODEL.SEM_SEG_HEAD MODEL.WEIGHTS TEST"
).split()
# what must be so, because only this is built here
_WANTED: dict[str, tuple[Any, ...]] = {
    "INPUT.FORMAT": ("BGR",),
    "MODEL.ANCHOR_GENERATOR.NAME": ("DefaultAnchorGenerator",),
    "MODEL.ANCHOR_GENERATOR.OFFSET": (0.0,),
    "MODEL.BACKBONE.NAME": (
        "build_resnet_backbone",
        "build_resnet_fpn_backbone",
        "build_bua_resnet_backbone",
    ),
    "MODEL.BUA.CAFFE": (True,),
    "MODEL.BUA.RESNET_VERSION": (1, 2),
    "MODEL.FPN.FUSE_TYPE": ("sum",),
    "MODEL.FPN.NORM": ("",),
    "MODEL.LOAD_PROPOSALS": (False,),
    "MODEL.META_ARCHITECTURE": ("GeneralizedRCNN", "GeneralizedBUARCNN"),
    "MODEL.PROPOSAL_GENERATOR.NAME": ("RPN", "BUARPN"),
    "MODEL.RESNETS.DEFORM_MODULATED": (False,),
    "MODEL.RESNETS.NORM": ("FrozenBN", "BN"),
    "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG": (False,),
    "MODEL.ROI_BOX_HEAD.NAME": ("", "FastRCNNConvFCHead"),
    "MODEL.ROI_BOX_HEAD.NORM": ("",),
    "MODEL.ROI_BOX_HEAD.NUM_CONV": (0,),
    "MODEL.ROI_BOX_HEAD.USE_SIGMOID_CE": (False,),
    "MODEL.ROI_HEADS.NAME": (
        "Res5ROIHeads",
        "StandardROIHeads",
        "AttributeRes5ROIHeads",
        "AttributeStandardROIHeads",
        "BUACaffeRes5ROIHeads",
    ),
    "MODEL.RPN.BBOX_REG_WEIGHTS": ([1.0, 1.0, 1.0, 1.0],),
    "MODEL.RPN.CONV_DIMS": ([-1],),
    "MODEL.RPN.HEAD_NAME": ("StandardRPNHead", "StandardBUARPNHead"),
}
_DEFAULTS: dict[str, Any] = {
    "INPUT.MAX_SIZE_TEST": 1333,
    "INPUT.MIN_SIZE_TEST": 800,
    "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [[0.5, 1.0, 2.0]],
    "MODEL.ANCHOR_GENERATOR.SIZES": [[32, 64, 128, 256, 512]],
    "MODEL.ATTRIBUTE_ON": False,
    "MODEL.BUA.ATTRIBUTE.NUM_CLASSES": 401,
    "MODEL.BUA.ATTRIBUTE_ON": False,
    "MODEL.BUA.RPN.CONV_OUT_CHANNELS": 512,
    "MODEL.CAFFE_MAXPOOL": False,
    "MODEL.FPN.IN_FEATURES": [],
    "MODEL.FPN.OUT_CHANNELS": 256,
    "MODEL.PIXEL_MEAN": [103.53, 116.28, 123.675],
    "MODEL.PIXEL_STD": [1.0, 1.0, 1.0],
    "MODEL.PROPOSAL_GENERATOR.HID_CHANNELS": -1,
    "MODEL.PROPOSAL_GENERATOR.MIN_SIZE": 0,
    "MODEL.RESNETS.DEFORM_ON_PER_STAGE": [False, False, False, False],
    "MODEL.RESNETS.DEPTH": 50,
    "MODEL.RESNETS.NUM_GROUPS": 1,
    "MODEL.RESNETS.OUT_FEATURES": ["res4"],
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 256,
    "MODEL.RESNETS.RES5_DILATION": 1,
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 64,
    "MODEL.RESNETS.STRIDE_IN_1X1": True,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 64,
    "MODEL.ROI_ATTRIBUTE_HEAD.FC_DIM": 512,
    "MODEL.ROI_ATTRIBUTE_HEAD.NUM_CLASSES": 400,
    "MODEL.ROI_ATTRIBUTE_HEAD.OBJ_EMBED_DIM": 256,
    "MODEL.ROI_BOX_HEAD.ATTR": False,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": [10.0, 10.0, 5.0, 5.0],
    "MODEL.ROI_BOX_HEAD.FC_DIM": 1024,
    "MODEL.ROI_BOX_HEAD.NUM_ATTRS": -1,
    "MODEL.ROI_BOX_HEAD.NUM_FC": 0,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 0,
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIAlignV2",
    "MODEL.ROI_BOX_HEAD.RES5HALVE": True,
    "MODEL.ROI_HEADS.IN_FEATURES": ["res4"],
    "MODEL.ROI_HEADS.NAME": "Res5ROIHeads",
    "MODEL.ROI_HEADS.NUM_CLASSES": 80,
    "MODEL.RPN.IN_FEATURES": ["res4"],
    "MODEL.RPN.NMS_THRESH": 0.7,
    "MODEL.RPN.POST_NMS_TOPK_TEST": 1000,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 6000,
    # of these the value decides between what is built
    "MODEL.BACKBONE.NAME": "build_resnet_backbone",
    "MODEL.BUA.RESNET_VERSION": 1,
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
}


def read_detectron2_yaml(path: Path) -> DetectorConfig:
    """The detector that a detectron2 YAML file describes. Raises ExtractError naming the key."""
    return from_detectron2(_with_base(path, ()), path)


def from_detectron2(content: Mapping[str, Any], source: object) -> DetectorConfig:
    """The same from the file's content; `source` names it in errors."""
    settings = {k: _plain(v) for k, v in flat(content).items()}
    unknown = []
    for key, value in settings.items():
        if any(key == p or key.startswith(f"{p}.") for p in _PASSED_OVER):
            continue
        if key in _WANTED:
            if value not in _WANTED[key]:
                wanted = " or ".join(repr(w) for w in _WANTED[key])
                raise ExtractError(f"{source}: {key} is {value!r}, wanted {wanted}")
        elif key not in _DEFAULTS:
            unknown.append(key)
    if unknown:
        raise ExtractError(
            f"{source}: settings that this program does not know: {', '.join(unknown)}; remove"
            " those that do not alter features at test time"
        )

    def get(key: str) -> Any:
        return settings.get(key, _DEFAULTS[key])

    try:
        return _config(get)
    except (TypeError, ValueError, IndexError) as error:
        raise ExtractError(f"{source}: a setting has no usable value ({error})") from error


def _config(get: Callable[[str], Any]) -> DetectorConfig:
    caffe = get("MODEL.META_ARCHITECTURE") == "GeneralizedBUARCNN"
    pyramid = get("MODEL.BACKBONE.NAME") == "build_resnet_fpn_backbone"
    resize = "pillow"
    if caffe or get("MODEL.BUA.ATTRIBUTE_ON"):  # both modes of bottom-up-attention.pytorch
        resize = "opencv-after-mean" if caffe else "opencv"
    return DetectorConfig(
        pixels=PixelConfig(
            mean=_floats(get("MODEL.PIXEL_MEAN")),  # type: ignore[arg-type]
            std=_floats(get("MODEL.PIXEL_STD")),  # type: ignore[arg-type]
            min_size=int(get("INPUT.MIN_SIZE_TEST")),
            max_size=int(get("INPUT.MAX_SIZE_TEST")),
            resize=resize,
            divisible=32 if pyramid else 0,
        ),
        resnet=_resnet(get, caffe, pyramid),
        fpn_channels=int(get("MODEL.FPN.OUT_CHANNELS")) if pyramid else 0,
        rpn=_rpn(get, caffe),
        roi=_roi(get, caffe),
        plus_one=caffe,
    )


def _resnet(get: Callable[[str], Any], caffe: bool, pyramid: bool) -> ResNetConfig:
    outputs = get("MODEL.FPN.IN_FEATURES") if pyramid else get("MODEL.RESNETS.OUT_FEATURES")
    last = max(outputs)
    return ResNetConfig(
        depth=int(get("MODEL.RESNETS.DEPTH")),
        stem_channels=int(get("MODEL.RESNETS.STEM_OUT_CHANNELS")),
        res2_channels=int(get("MODEL.RESNETS.RES2_OUT_CHANNELS")),
        groups=int(get("MODEL.RESNETS.NUM_GROUPS")),
        group_width=int(get("MODEL.RESNETS.WIDTH_PER_GROUP")),
        stride_in_1x1=bool(get("MODEL.RESNETS.STRIDE_IN_1X1")),
        res5_dilation=int(get("MODEL.RESNETS.RES5_DILATION")) if last == "res5" else 1,
        deform=tuple(bool(v) for v in get("MODEL.RESNETS.DEFORM_ON_PER_STAGE")),  # type: ignore[arg-type]
        caffe_pool=caffe or bool(get("MODEL.CAFFE_MAXPOOL")),
        pre_activation=int(get("MODEL.BUA.RESNET_VERSION")) == 2,
        last=last,
    )


def _rpn(get: Callable[[str], Any], caffe: bool) -> RpnConfig:
    hidden = int(get("MODEL.PROPOSAL_GENERATOR.HID_CHANNELS"))
    if caffe:
        hidden = int(get("MODEL.BUA.RPN.CONV_OUT_CHANNELS"))
    (ratios,) = get("MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS")
    return RpnConfig(
        maps=tuple(get("MODEL.RPN.IN_FEATURES")),
        sizes=tuple(_floats(sizes) for sizes in get("MODEL.ANCHOR_GENERATOR.SIZES")),
        ratios=_floats(ratios),
        caffe_anchors=caffe,
        channels=hidden if hidden > 0 else None,
        softmax=caffe,
        before_nms=int(get("MODEL.RPN.PRE_NMS_TOPK_TEST")),
        after_nms=int(get("MODEL.RPN.POST_NMS_TOPK_TEST")),
        nms=float(get("MODEL.RPN.NMS_THRESH")),
        min_size=float(get("MODEL.PROPOSAL_GENERATOR.MIN_SIZE")),
    )


def _roi(get: Callable[[str], Any], caffe: bool) -> RoiConfig:
    residual = "Res5" in get("MODEL.ROI_HEADS.NAME")
    classes, width = (
        int(get("MODEL.ROI_HEADS.NUM_CLASSES")),
        8 * int(get("MODEL.RESNETS.RES2_OUT_CHANNELS")),
    )
    attributes: dict[str, Any] = {}
    if caffe and get("MODEL.BUA.ATTRIBUTE_ON"):
        attributes = {"attributes": int(get("MODEL.BUA.ATTRIBUTE.NUM_CLASSES")) - 1}
        attributes["attribute_none"] = "first"
    elif get("MODEL.ROI_BOX_HEAD.ATTR"):
        attributes = {"attributes": int(get("MODEL.ROI_BOX_HEAD.NUM_ATTRS"))}
        attributes |= {"attribute_none": "last", "attribute_hidden": width // 4}
        attributes["attribute_embedding"] = width // 8
    elif get("MODEL.ATTRIBUTE_ON"):
        attributes = {"attributes": int(get("MODEL.ROI_ATTRIBUTE_HEAD.NUM_CLASSES"))}
        attributes["attribute_hidden"] = int(get("MODEL.ROI_ATTRIBUTE_HEAD.FC_DIM"))
        attributes["attribute_embedding"] = int(get("MODEL.ROI_ATTRIBUTE_HEAD.OBJ_EMBED_DIM"))
    dilation = 1
    if residual:
        halved = bool(get("MODEL.ROI_BOX_HEAD.RES5HALVE"))
        dilation = int(get("MODEL.RESNETS.RES5_DILATION")) if halved else 2
    return RoiConfig(
        maps=tuple(get("MODEL.ROI_HEADS.IN_FEATURES")),
        pooler=get("MODEL.ROI_BOX_HEAD.POOLER_TYPE"),
        resolution=int(get("MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION")),
        sampling=int(get("MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO")),
        head="res5" if residual else "fc",
        res5_dilation=dilation,
        fc_layers=0 if residual else int(get("MODEL.ROI_BOX_HEAD.NUM_FC")),
        fc_width=int(get("MODEL.ROI_BOX_HEAD.FC_DIM")),
        classes=classes - 1 if caffe else classes,
        background_first=caffe,
        box_weights=_floats(get("MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS")),  # type: ignore[arg-type]
        **attributes,
    )


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def _plain(value: Any) -> Any:
    """Tuples that YAML reads as text, `(600,)`, and lists."""
    if isinstance(value, str) and value.startswith("("):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return value
    return list(value) if isinstance(value, tuple) else value


def _with_base(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A YAML file over the one that its _BASE_ names, and so on."""
    if path in seen:
        raise ExtractError(f"{path}: its _BASE_ leads back to itself")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ExtractError(f"{path}: cannot be read as YAML ({error})") from error
    if not isinstance(content, dict):
        raise ExtractError(f"{path}: wanted a detectron2 configuration, `MODEL:` and the like")
    base = content.pop("_BASE_", None)
    if base is None:
        return content
    if "://" in str(base):
        raise ExtractError(f"{path}: _BASE_ is {base}, wanted a file beside it; download it first")
    return _merged(_with_base((path.parent / str(base)).resolve(), (*seen, path)), content)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return result
