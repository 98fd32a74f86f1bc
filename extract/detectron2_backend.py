"""Detectron2's own model behind our detector's methods; the library is imported when it is built.

Its model zoo knows no attribute heads, no Caffe pooling and no pre-activated blocks: the attribute
head is ours, the rest is an error that says so. Legend: as in `extract.detector`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from extract.detector import Detector
from extract.detector_config import DetectorConfig
from extract.errors import ExtractError
from extract.roi import AttributePredictor, RegionOutputs
from extract.rpn import Frame, Proposals

INSTALL = (
    "pip install --no-build-isolation"
    " 'detectron2 @ git+https://github.com/facebookresearch/detectron2'"
)


class Detectron2Detector(Detector):
    """The same numbers from detectron2's code, for comparison."""

    def __init__(self, config: DetectorConfig) -> None:
        """Raises ExtractError when detectron2 is missing or has no such network."""
        nn.Module.__init__(self)
        self.config = config
        self.kind, self.layout = torch.float32, torch.contiguous_format
        lacking = _lacking(config)
        if lacking:
            raise ExtractError(
                f"detectron2 has no {', '.join(lacking)}: extract this preset without --backend"
            )
        self.library_versions()
        from detectron2.modeling import build_backbone, build_model

        settings = detectron2_settings(config)
        self.heads: Any = None
        if config.roi.head == "none":
            self.backbone = build_backbone(settings)
        else:
            model = build_model(settings)
            self.backbone, self.heads = model.backbone, model.roi_heads
            self.generator: Any = model.proposal_generator
            self.attributes = AttributePredictor(config) if config.roi.attributes else None
        self.eval().requires_grad_(False)

    @staticmethod
    def library_versions() -> dict[str, str]:
        """Detectron2's. Raises ExtractError when it is missing."""
        try:
            import detectron2
        except ImportError as error:
            raise ExtractError(
                f"detectron2 cannot be imported ({error}); type {INSTALL}, or leave --backend out"
            ) from error
        return {"detectron2": str(detectron2.__version__)}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The parameters under the names that our own detector has, anchors included."""
        found = {f"backbone.{k}": v for k, v in self.backbone.state_dict().items()}
        if self.heads is not None:
            found |= {f"proposal_generator.{k}": v for k, v in self.generator.state_dict().items()}
            found |= {f"roi_heads.{k}": v for k, v in self.heads.state_dict().items()}
            for number, anchors in enumerate(self.generator.anchor_generator.cell_anchors):
                found[f"proposal_generator.anchor_generator.cell_anchors.{number}"] = anchors
            if self.attributes is not None:
                for name, tensor in self.attributes.state_dict().items():
                    found[f"roi_heads.attribute_predictor.{name}"] = tensor
        return found

    def load_state_dict(  # type: ignore[override]
        self, given: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Copy tensors of those names."""
        own = self.state_dict()
        for name, tensor in given.items():
            own[name].copy_(tensor)

    @property
    def roi_heads(self) -> Any:  # type: ignore[override]
        """Detectron2's heads, None of a network for maps only."""
        return self.heads

    def maps(self, images: Tensor, wanted: Collection[str] | None = None) -> dict[str, Tensor]:
        maps: dict[str, Tensor] = self.backbone(images)
        return maps

    def grid(self, maps: dict[str, Tensor]) -> Tensor:
        if self.heads is not None and self.config.roi.head == "res5":
            last: Tensor = self.heads.res5(maps["res4"])
            return last
        if self.config.resnet.res5_dilation == 2:
            raise ExtractError(
                "detectron2 has no second last stage: grids and regions of a dilated network need"
                " two extractions, or no --backend"
            )
        return maps["res5"]

    def proposals(self, maps: dict[str, Tensor], frames: list[Frame]) -> list[Proposals]:
        from detectron2.structures import ImageList

        any_map = next(iter(maps.values()))
        sizes = [(frame.height, frame.width) for frame in frames]
        count = len(frames)
        images = ImageList(any_map[:count], sizes)  # its proposals depend on the sizes only
        used = {name: maps[name][:count] for name in self.config.rpn.maps}
        found, _ = self.generator(images, used, None)
        return [Proposals(one.proposal_boxes.tensor, one.objectness_logits) for one in found]

    def regions(self, maps: dict[str, Tensor], place: int, boxes: Tensor) -> RegionOutputs:
        from detectron2.structures import Boxes

        used = [maps[name][place : place + 1] for name in self.config.roi.maps]
        if self.config.roi.head == "res5":
            pooled = None
            features = self.heads._shared_roi_transform(used, [Boxes(boxes)]).mean(dim=(2, 3))
        else:
            pooled = self.heads.box_pooler(used, [Boxes(boxes)])
            features = self.heads.box_head(pooled)
        logits, deltas = self.heads.box_predictor(features)
        return RegionOutputs(
            features=features,
            logits=logits,
            deltas=deltas,
            attributes=None if self.attributes is None else self.attributes(features, logits),
            pooled=pooled.flatten(1) if pooled is not None and pooled.shape[-1] == 1 else None,
        )

    def fold(self) -> Detector:
        """As it is: this is the reference."""
        return self

    def arrange(self, device: torch.device) -> Detector:
        """As it is."""
        return self

    def set_precision(self, kind: torch.dtype) -> Detector:
        if kind != torch.float32:
            raise ExtractError(f"--backend detectron2 has precision=float32 only, not {kind}")
        return self


def _lacking(config: DetectorConfig) -> list[str]:
    """What of a configuration detectron2's main branch cannot build."""
    parts = {
        "Caffe pooling in the stem": config.resnet.caffe_pool,
        "pre-activated blocks": config.resnet.pre_activation,
        "Caffe's boxes": config.plus_one,
        "dilated last stage of regions": config.roi.res5_dilation == 2,
    }
    return [name for name, wanted in parts.items() if wanted]


def detectron2_settings(config: DetectorConfig) -> Any:
    """Our configuration as detectron2's."""
    from detectron2.config import get_cfg

    settings = get_cfg()
    model, resnet, rpn, roi = settings.MODEL, config.resnet, config.rpn, config.roi
    model.DEVICE, model.MASK_ON = "cpu", False
    model.PIXEL_MEAN, model.PIXEL_STD = list(config.pixels.mean), list(config.pixels.std)
    levels = [f"res{level}" for level in range(2, int(resnet.last[3:]) + 1)]
    model.RESNETS.OUT_FEATURES = levels
    model.RESNETS.DEPTH = resnet.depth
    model.RESNETS.STEM_OUT_CHANNELS = resnet.stem_channels
    model.RESNETS.RES2_OUT_CHANNELS = resnet.res2_channels
    model.RESNETS.NUM_GROUPS, model.RESNETS.WIDTH_PER_GROUP = resnet.groups, resnet.group_width
    model.RESNETS.STRIDE_IN_1X1 = resnet.stride_in_1x1
    model.RESNETS.RES5_DILATION = resnet.res5_dilation
    model.RESNETS.DEFORM_ON_PER_STAGE = list(resnet.deform)
    if config.fpn_channels:
        model.BACKBONE.NAME = "build_resnet_fpn_backbone"
        model.FPN.IN_FEATURES, model.FPN.OUT_CHANNELS = levels, config.fpn_channels
    model.RPN.IN_FEATURES = list(rpn.maps)
    model.RPN.CONV_DIMS = [rpn.channels or -1]
    model.RPN.PRE_NMS_TOPK_TEST, model.RPN.POST_NMS_TOPK_TEST = rpn.before_nms, rpn.after_nms
    model.RPN.NMS_THRESH = rpn.nms
    model.ANCHOR_GENERATOR.SIZES = [list(sizes) for sizes in rpn.sizes]
    model.ANCHOR_GENERATOR.ASPECT_RATIOS = [list(rpn.ratios)]
    model.PROPOSAL_GENERATOR.MIN_SIZE = rpn.min_size
    model.ROI_HEADS.NAME = "Res5ROIHeads" if roi.head == "res5" else "StandardROIHeads"
    model.ROI_HEADS.IN_FEATURES, model.ROI_HEADS.NUM_CLASSES = list(roi.maps), roi.classes
    model.ROI_BOX_HEAD.NAME = "FastRCNNConvFCHead" if roi.head == "fc" else ""
    model.ROI_BOX_HEAD.NUM_FC, model.ROI_BOX_HEAD.FC_DIM = roi.fc_layers, roi.fc_width
    model.ROI_BOX_HEAD.POOLER_TYPE = roi.pooler
    model.ROI_BOX_HEAD.POOLER_RESOLUTION = roi.resolution
    model.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO = roi.sampling
    model.ROI_BOX_HEAD.BBOX_REG_WEIGHTS = list(roi.box_weights)
    return settings
