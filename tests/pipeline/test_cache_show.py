"""`pipeline cache show`: boxes and heat maps lie where the cache says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from extract.cache import ImageFeatures, Stream
from extract.writer import CacheWriter
from pipeline.cli import main
from pipeline.pictures import draw_boxes, draw_heat, label


def record() -> ImageFeatures:
    """Two boxes and a grid of 2 x 3 cells whose norms rise, of 300 x 200 pixels."""
    grid = np.zeros((6, 4), dtype=np.float32)
    grid[:, 1] = np.arange(6)
    return ImageFeatures(
        image_id="7",
        width=300,
        height=200,
        streams={"regions": np.ones((2, 5), dtype=np.float32), "grids": grid},
        boxes={"regions": np.array([[10, 20, 110, 120], [150, 50, 290, 190]], dtype=np.float32)},
        grid_shape={"grids": (2, 3)},
        extras={
            "regions": {
                "objects": np.array([1, 0], dtype=np.int32),
                "attributes": np.array([0, 1], dtype=np.int32),
                "scores": np.array([0.25, 0.75], dtype=np.float32),
            }
        },
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    names = {"objects": ["bus", "cat,kitty"], "attributes": ["red", "small"]}
    streams = {"regions": Stream(5), "grids": Stream(4)}
    with CacheWriter(tmp_path / "c", {"preset": "toy", "names": names}, streams) as writer:
        writer.commit([record()])
    Image.new("RGB", (600, 400), (0, 0, 0)).save(tmp_path / "big.png")
    return tmp_path / "c"


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in args])
    return int(caught.value.code or 0)


def test_boxes_are_drawn_at_the_photographs_scale(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out.png"
    options = ["--cache", cache, "--image", tmp_path / "big.png", "--out", out]
    assert run("cache", "show", "7", *options) == 0
    said = capsys.readouterr()
    assert "boxes are scaled" in said.err
    lines = said.out.splitlines()[1:]
    assert lines[0].split() == ["small", "bus", "0.75", "150.0", "50.0", "290.0", "190.0"]
    assert lines[1].split()[:3] == ["red", "cat", "0.25"]
    with Image.open(out) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (400, 600, 3)
    for x, y in ((20, 150), (220, 150), (580, 300), (300, 300)):  # edges, twice as large
        assert pixels[y, x].any(), (x, y)
    assert not pixels[200, 120].any() and not pixels[395, 5].any()


def test_labels() -> None:
    extras = record().extras["regions"]
    assert label(extras, 0, {}) == "attribute 0 object 1 0.25"
    assert label(extras, 0, {"objects": ["bus"]}) == "attribute 0 object 1 0.25"
    assert label({}, 0, {"objects": ["bus"]}) == ""


def test_only_the_best_boxes() -> None:
    black = Image.new("RGB", (300, 200))
    best = np.asarray(draw_boxes(black, record(), "regions", {}, most=1))
    assert best[190, 200].any() and not best[120, 50].any()


def test_heat_follows_the_norm(cache: Path, tmp_path: Path) -> None:
    black = Image.new("RGB", (300, 200))
    heat = np.asarray(draw_heat(black, record(), "grids")).astype(int).sum(axis=2)
    cells = [heat[50 + 100 * i, 50 + 100 * j] for i in range(2) for j in range(3)]
    assert cells == sorted(cells) and cells[0] == 0 and len(set(cells)) == 6
    out = tmp_path / "heat.png"
    options = ["--cache", cache, "--image", tmp_path / "big.png", "--out", out]
    assert run("cache", "show", "7", "--stream", "grids", *options) == 0
    with Image.open(out) as picture:
        assert picture.size == (600, 400)


def test_errors(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run("cache", "show", "7", "--cache", cache) == 1
    assert "the photograph is not there; name it with --image" in capsys.readouterr().err
    options = ["--cache", cache, "--image", tmp_path / "big.png"]
    assert run("cache", "show", "8", *options) == 1
    assert "no image '8'" in capsys.readouterr().err
    assert run("cache", "show", "7", "--stream", "x", *options) == 1
    assert "no stream 'x', it has" in capsys.readouterr().err
