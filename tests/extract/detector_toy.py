"""Small detectors with random weights, for tests of what surrounds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from extract.detector import Detector
from extract.detector_config import DetectorConfig
from extract.detector_presets import DETECTOR_PRESETS, DetectorPreset

CLASSES, ATTRIBUTES = 30, 9


def small(name: str, **changes: object) -> DetectorPreset:
    """A preset with a network of a few channels, small images and few proposals."""
    preset = DETECTOR_PRESETS[name]
    detector = preset.detector
    groups = 4 if detector.resnet.groups > 1 else 1
    detector = replace(
        detector,
        pixels=replace(detector.pixels, min_size=64, max_size=110),
        resnet=replace(
            detector.resnet,
            depth=50,
            stem_channels=8,
            res2_channels=16,
            groups=groups,
            group_width=4 // groups + 1,
        ),
        fpn_channels=16 if detector.fpn_channels else 0,
        rpn=replace(
            detector.rpn,
            sizes=tuple(tuple(s / 4 for s in sizes) for sizes in detector.rpn.sizes)
            if not detector.rpn.caffe_anchors
            else ((1, 2, 4, 8),),
            channels=8 if detector.rpn.channels else None,
            before_nms=100,
            after_nms=16,
            min_size=min(detector.rpn.min_size, 4.0),
        ),
        roi=replace(
            detector.roi,
            classes=CLASSES,
            attributes=ATTRIBUTES if detector.roi.attributes else 0,
            attribute_hidden=16,
            attribute_embedding=8,
            fc_width=24,
        ),
    )
    return replace(preset, detector=detector, **changes)  # type: ignore[arg-type]


def weights_for(config: DetectorConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights with the norms' statistics of a network that keeps its numbers moderate."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, tensor in Detector(config).state_dict().items():
        if "cell_anchors" in name:
            tensors[name] = tensor
        elif name.endswith("running_var"):
            tensors[name] = 0.5 + torch.rand(tensor.shape, generator=generator)
        elif ".norm." in name or "res5_bn" in name:
            noise = torch.randn(tensor.shape, generator=generator) * 0.1
            scale = 0.3 if "conv3" in name else 0.7
            tensors[name] = noise + (scale if name.endswith("weight") else 0.0)
        elif name.endswith("bias"):
            tensors[name] = torch.randn(tensor.shape, generator=generator) * 0.02
        else:
            spread = (2 / max(tensor[0].numel(), 1)) ** 0.5
            if "bbox_pred" in name or "anchor_deltas" in name:
                spread /= 20
            if "cls_score" in name or "obj_embed" in name:
                spread *= 20
            tensors[name] = torch.randn(tensor.shape, generator=generator) * spread
    return tensors


def write_weights(preset: DetectorPreset, path: Path, seed: int = 0) -> Path:
    """A safetensors file of `weights_for`."""
    save_file(weights_for(preset.detector, seed), path)
    return path
