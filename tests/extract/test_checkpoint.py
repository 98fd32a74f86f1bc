"""Checkpoints: every public form is read, nothing foreign runs, nothing is skipped in silence."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor

from extract.checkpoint import load_detector, read_checkpoint, resnet_names
from extract.detector import Detector
from extract.detector_config import DetectorConfig, ResNetConfig
from extract.detector_presets import DETECTOR_PRESETS
from extract.errors import ExtractError
from extract.resnet import ResNet
from extract.restricted_pickle import load_arrays
from tests.extract.detector_toy import small, weights_for

# preset -> the parameters of the public checkpoint, under spec/detector-weights
INVENTORIES = {
    "butd-c4-36": "pybua_faster_rcnn_R_101_C4_attr_caffemaxpool",
    "bua-c4-10-100": "milvlg_test-caffe-r101",
    "bua-c4-r152-100": "milvlg_test-caffe-r152",
    "bua-d2-r50": "milvlg_test-d2-r50",
    "bua-d2-r101": "milvlg_test-d2-r101",
    "bua-d2-x152": "milvlg_test-d2-X152",
    "grid-r50": "gridfeats_R-50-grid",
    "grid-x101": "gridfeats_X-101-grid",
    "grid-x152": "gridfeats_X-152-grid",
    "grid-x152pp": "gridfeats_X-152-challenge",
    "fpn-pyramid": "d2main_mask_rcnn_R_50_FPN_3x",
    "fpn-pyramid-r101": "d2main_mask_rcnn_R_101_FPN_3x",
    "fpn-pyramid-x101": "d2main_mask_rcnn_X_101_32x8d_FPN_3x",
}
CONFIG = small("butd-c4-36").detector


class Evil:
    """Runs a command when it is unpickled the usual way."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil-was-here",)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return weights_for(CONFIG)


@pytest.mark.parametrize("name", INVENTORIES)
def test_presets_have_the_public_checkpoints_parameters(name: str, shared_dir: Path) -> None:
    path = shared_dir / "spec" / "detector-weights" / f"{INVENTORIES[name]}.json"
    if not path.is_file():
        pytest.skip(f"no {path}")
    shapes = json.loads(path.read_text())["state_dict"]
    with torch.device("meta"):
        tensors = {k: torch.empty(v) for k, v in shapes.items() if not k.startswith("pixel_")}
        load_detector(Detector(DETECTOR_PRESETS[name].detector), tensors, path)
        load_detector(Detector(DETECTOR_PRESETS[name].built), tensors, path)


def write(kind: str, weights: dict[str, Tensor], path: Path) -> None:
    if kind == "safetensors":
        save_file(weights, path)
    elif kind == "pkl":  # as Python 2's protocol writes arrays
        arrays = {k: v.numpy() for k, v in weights.items()}
        path.write_bytes(pickle.dumps({"model": arrays, "__author__": "x"}, protocol=2))
    else:
        content = {"model": OrderedDict(weights), "iteration": 7, "optimizer": {"lr": [0.1]}}
        torch.save(content, path, _use_new_zipfile_serialization=kind == "pth")


@pytest.mark.parametrize("kind", ["safetensors", "pkl", "pth", "old-pth"])
def test_every_form_gives_the_same_detector(
    kind: str, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "weights.bin"  # the content decides, not the suffix
    write(kind, weights, path)
    detector = Detector(CONFIG)
    load_detector(detector, read_checkpoint(path), path)
    for name, tensor in detector.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_attribute_heads_of_other_projects(weights: dict[str, Tensor]) -> None:
    ours = "roi_heads.attribute_predictor."
    for head in (
        {"obj_embed": "cls_embed", "fc.0": "attr_linear1", "attr_score": "attr_linear2"},
        {"obj_embed": "cls_embedding", "fc.0": "fc_attr", "attr_score": "attr_score"},
    ):
        renamed = {}
        for name, tensor in weights.items():
            part, _, kind = name.removeprefix(ours).rpartition(".")
            known = name.startswith(ours)
            renamed[f"roi_heads.box_predictor.{head[part]}.{kind}" if known else name] = tensor
        detector = Detector(CONFIG)
        load_detector(detector, renamed, "x")
        assert torch.equal(detector.state_dict()[f"{ours}fc.0.bias"], weights[f"{ours}fc.0.bias"])


def test_anchors_of_a_checkpoint_come_first(weights: dict[str, Tensor]) -> None:
    name = "proposal_generator.anchor_generator.cell_anchors.0"
    detector = Detector(CONFIG)
    load_detector(detector, {**weights, name: weights[name] * 2}, "x")
    assert torch.equal(detector.state_dict()[name], weights[name] * 2)
    without = {k: v for k, v in weights.items() if k != name}
    load_detector(Detector(CONFIG), without, "x")  # since 2021 detectron2 leaves them out


def test_what_does_not_fit_is_listed(weights: dict[str, Tensor]) -> None:
    wrong = dict(weights)
    del wrong["backbone.stem.conv1.weight"]
    wrong["backbone.extra"] = torch.zeros(1)
    wrong["roi_heads.box_predictor.cls_score.bias"] = torch.zeros(3)
    with pytest.raises(ExtractError) as caught:
        load_detector(Detector(CONFIG), wrong, "model.pth")
    for part in (
        "model.pth",
        "1 missing: backbone.stem.conv1.weight",
        "1 unexpected: backbone.extra",
        "1 of another shape: roi_heads.box_predictor.cls_score.bias (3,), wanted (31,)",
    ):
        assert part in str(caught.value)


def test_other_pixel_statistics_are_an_error(weights: dict[str, Tensor]) -> None:
    wrong = {**weights, "pixel_mean": torch.tensor([103.53, 116.28, 123.675])}
    with pytest.raises(ExtractError, match=r"pixel_mean is \[103.53, 116.28, 123.675\]"):
        load_detector(Detector(CONFIG), wrong, "x")


@pytest.mark.parametrize("kind", ["pkl", "pth", "old-pth"])
def test_foreign_classes_are_refused_by_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil"
    if kind == "pkl":
        path.write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    else:
        torch.save({"model": Evil()}, path, _use_new_zipfile_serialization=kind == "pth")
    with pytest.raises(ExtractError, match=r"refused.*(posix|os)\.system"):
        read_checkpoint(path)
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no readable checkpoint"),
        (b"<html>not found</html>", "no readable checkpoint"),
        (pickle.dumps([1, 2]), "holds list, wanted tensors by name"),
        (pickle.dumps({"model": {"a": "b"}}), "holds no tensors"),
        (b"\x10\0\0\0\0\0\0\0{broken", "not a readable safetensors file"),
        (b"PK\x03\x04broken", "no readable checkpoint"),
    ],
)
def test_broken_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pkl"
    path.write_bytes(content)
    with pytest.raises(ExtractError, match=message) as caught:
        read_checkpoint(path)
    assert str(path) in str(caught.value)


def test_arrays_of_both_pythons(tmp_path: Path) -> None:
    values = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(2.5), "c": "text"}
    for protocol in (2, 5):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(values, protocol=protocol))
        found = load_arrays(tmp_path / "x.pkl")
        assert found["a"].tolist() == values["a"].tolist() and found["b"] == 2.5


def test_torchvisions_resnet_has_the_same_numbers() -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.resnet50(weights=None).eval()
    ours = ResNet(ResNetConfig(stride_in_1x1=False, last="res5"))
    ours.load_state_dict(resnet_names(theirs.state_dict(), "x"))
    ours.eval().fold()
    images = torch.randn(1, 3, 64, 48)
    with torch.inference_mode():
        x = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(images))))
        x = theirs.layer4(theirs.layer3(theirs.layer2(theirs.layer1(x))))
        found = ours(images)["res5"]
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-4)


def test_caffe2s_names() -> None:
    config = ResNetConfig(stem_channels=8, res2_channels=16, group_width=4, last="res5")
    network = ResNet(config)
    parts = {"conv1": "branch2a", "conv2": "branch2b", "conv3": "branch2c", "shortcut": "branch1"}
    kinds = {"weight": "_w", "norm.weight": "_bn_s", "norm.bias": "_bn_b"}
    given = {}
    for name, tensor in network.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            continue
        stage, *rest = name.split(".", 1) if name.startswith("stem") else name.split(".", 3)
        if stage == "stem":
            kind = rest[0].removeprefix("conv1.")
            given[f"{'res_' if 'norm' in kind else ''}conv1{kinds[kind]}"] = torch.rand_like(tensor)
        else:
            number, part, kind = rest
            given[f"{stage}_{number}_{parts[part]}{kinds[kind]}"] = torch.rand_like(tensor)
    given["pred_w"] = torch.zeros(1000, 128)
    named = resnet_names(given, "x")
    network.load_state_dict(named)
    assert torch.equal(network.stem.conv1.weight, given["conv1_w"])
    assert named["res2.0.conv1.norm.running_var"].tolist() == [1.0] * 4


def test_folding_changes_nothing() -> None:
    for name in ("bua-c4-r152-100", "grid-x152pp"):
        config: DetectorConfig = small(name).detector
        tensors = weights_for(config)
        images = torch.randn(1, 3, 64, 80) * 50
        plain, folded = Detector(config), Detector(config)
        for detector in (plain, folded):
            load_detector(detector, tensors, name)
        with torch.inference_mode():
            a, b = plain.maps(images), folded.fold().maps(images)
            last = plain.grid(a), folded.grid(b)
        torch.testing.assert_close(last[0], last[1], rtol=1e-4, atol=1e-3)
