"""Detectron2's YAML files: read safely, bases included; what is not known is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from extract.detector_presets import DETECTOR_PRESETS
from extract.detectron2_config import read_detectron2_yaml
from extract.errors import ExtractError

GRID = """
_BASE_: base.yaml
MODEL:
  PIXEL_STD: [57.375, 57.120, 58.395]
  RESNETS: {STRIDE_IN_1X1: False, NUM_GROUPS: 32, WIDTH_PER_GROUP: 8, DEPTH: 101}
"""
GRID_BASE = """
MODEL:
  META_ARCHITECTURE: GeneralizedRCNN
  ATTRIBUTE_ON: True
  RESNETS: {OUT_FEATURES: ["res5"], RES5_DILATION: 2}
  RPN: {IN_FEATURES: ["res5"], PRE_NMS_TOPK_TEST: 6000, POST_NMS_TOPK_TEST: 1000}
  ROI_HEADS: {NAME: AttributeStandardROIHeads, IN_FEATURES: ["res5"], NUM_CLASSES: 1600}
  ROI_BOX_HEAD:
    NAME: FastRCNNConvFCHead
    NUM_FC: 2
    POOLER_RESOLUTION: 1
    POOLER_SAMPLING_RATIO: 2
INPUT:
  MIN_SIZE_TRAIN: (600,)
  MIN_SIZE_TEST: 600
  MAX_SIZE_TEST: 1000
SOLVER: {BASE_LR: 0.02}
VERSION: 2
"""
CAFFE = """
MODEL:
  META_ARCHITECTURE: GeneralizedBUARCNN
  PIXEL_MEAN: [102.9801, 115.9465, 122.7717]
  ANCHOR_GENERATOR: {SIZES: [[4, 8, 16, 32]]}
  PROPOSAL_GENERATOR: {NAME: BUARPN, MIN_SIZE: 16}
  BUA: {ATTRIBUTE_ON: True, RPN: {CONV_OUT_CHANNELS: 512}, ATTRIBUTE: {NUM_CLASSES: 401}}
  RESNETS: {DEPTH: 101, NORM: BN, RES5_DILATION: 2}
  BACKBONE: {NAME: build_bua_resnet_backbone}
  RPN: {HEAD_NAME: StandardBUARPNHead, POST_NMS_TOPK_TEST: 300}
  ROI_HEADS: {NAME: BUACaffeRes5ROIHeads, NUM_CLASSES: 1601, NMS_THRESH_TEST: 0.3}
  ROI_BOX_HEAD: {POOLER_TYPE: ROIPool, BBOX_REG_WEIGHTS: "(1.0, 1.0, 1.0, 1.0)"}
INPUT: {MIN_SIZE_TEST: 600, MAX_SIZE_TEST: 1000}
"""


def written(folder: Path, text: str, base: str = GRID_BASE) -> Path:
    (folder / "base.yaml").write_text(base)
    (folder / "model.yaml").write_text(text)
    return folder / "model.yaml"


@pytest.mark.parametrize(("text", "preset"), [(GRID, "grid-x101"), (CAFFE, "bua-c4-10-100")])
def test_public_configurations_give_the_presets(text: str, preset: str, tmp_path: Path) -> None:
    found = read_detectron2_yaml(written(tmp_path, text))
    assert found == DETECTOR_PRESETS[preset].detector


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MODEL: {RESNETS: {DEPHT: 50}}", "MODEL.RESNETS.DEPHT"),
        (
            "MODEL: {RPN: {NEW: 1}, SPARKLE: {A: true}}",
            "MODEL.RPN.NEW, MODEL.SPARKLE.A",
        ),
        ("MODEL: {RESNETS: {DEFORM_MODULATED: true}}", "DEFORM_MODULATED is True, wanted False"),
        ("MODEL: {META_ARCHITECTURE: RetinaNet}", "is 'RetinaNet', wanted 'GeneralizedRCNN'"),
        ("MODEL: {RESNETS: {DEPTH: 34}}", "resnet.depth is 34, wanted one of 50, 101, 152"),
        ("MODEL: {RESNETS: {DEPTH: many}}", "a setting has no usable value"),
        ("MODEL: {RPN: {CONV_DIMS: [256, 256]}}", "CONV_DIMS"),
        ("x: !!python/object/apply:os.system ['touch evil-was-here']", "cannot be read as YAML"),
        ("- a\n- b", "wanted a detectron2 configuration"),
        ("_BASE_: model.yaml", "leads back to itself"),
        ("_BASE_: https://x/y.yaml", "download it first"),
        ("_BASE_: absent.yaml", "absent.yaml: cannot be read"),
    ],
)
def test_errors_name_the_file_and_the_key(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExtractError) as caught:
        read_detectron2_yaml(written(tmp_path, text))
    assert message in str(caught.value)
    assert not (tmp_path / "evil-was-here").exists()
