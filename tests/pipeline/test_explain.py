"""`pipeline explain` on a small run, and what its pictures show."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from caption.models.context_assisted import MeshedCATConfig
from caption.registry import entry
from caption.vocabulary import SPECIALS, Vocabulary
from extract.cache import FeatureCache
from pipeline.cli import cli
from pipeline.explain_sheet import COLUMNS, FAINTEST, RED, Bars, Map, Notes, Row, draw, panel, png
from pipeline.explaining import Explained, explain_record, memory_note, rows_of
from tests.caption.toy import COLOURS, NOUNS, WIDTH, write_toy
from tests.conftest import SmallDemo


def explain(image: object, demo: SmallDemo, *options: object) -> Result:
    given = ["explain", image, "--run", demo.run, "--device", "cpu", "--steps", 5, *options]
    return CliRunner().invoke(cli, [str(argument) for argument in given])


def first(demo: SmallDemo) -> dict[str, Any]:
    """The first result of the test split with words in it."""
    results = json.loads((demo.run / "results" / "test.json").read_text(encoding="utf-8"))
    return next(entry for entry in results if entry["caption"])


def test_a_decoded_caption_by_id_and_by_file(small_demo: SmallDemo, tmp_path: Path) -> None:
    entry = first(small_demo)
    found = json.loads(
        explain(entry["image_id"], small_demo, "--json", "--out", tmp_path / "a.png").stdout
    )
    assert found["caption"] == entry["caption"]
    assert [word["word"] for word in found["words"]] == entry["caption"].split()
    for word in found["words"]:
        assert word["log_probability"] <= 0
        for heads in np.array(word["attention"]).reshape(-1, len(found["boxes"])):
            assert heads.sum() == pytest.approx(1, abs=1e-4)
        if word["complete"]:
            limit = 0.021 * max(1.0, abs(word["gained"]))
            assert sum(word["attribution"]["regions"]) == pytest.approx(word["gained"], abs=limit)
    with Image.open(tmp_path / "a.png") as picture:
        red = (np.asarray(picture.convert("RGB")) == RED).all(axis=-1)
    assert red.sum() > 20  # a box is outlined under every word
    photo = small_demo.scenes / "images" / f"{entry['image_id']}.jpg"
    boxes = small_demo.scenes / "boxes.json"
    by_file = explain(photo, small_demo, "--json", "--boxes", boxes, "--out", tmp_path / "b.png")
    again = json.loads(by_file.stdout)
    assert again["caption"] == found["caption"]
    for a, b in zip(found["words"], again["words"], strict=True):
        assert b["gained"] == pytest.approx(a["gained"], abs=0.02)  # a cache rounds to float16


def test_a_given_caption_and_every_map(small_demo: SmallDemo, caplog: Any) -> None:
    entry = first(small_demo)
    caption = " ".join([*entry["caption"].split()[:2], "zeppelin"])
    outcome = explain(entry["image_id"], small_demo, "--caption", caption, "--maps", "all")
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [*caption.split()[:2], "<unk>"]
    assert "read as <unk>: zeppelin" in outcome.stderr + caplog.text
    path = small_demo.run / "explained" / f"{entry['image_id']}.png"
    assert lines[-1] == str(path)
    with Image.open(path) as picture:
        assert picture.height > 8 * 100  # 2 layers of 4 heads


def test_a_report_explains_a_few_captions(small_demo: SmallDemo, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_demo.run, run)
    outcome = CliRunner().invoke(cli, ["report", str(run), "--explained", "1"])
    assert outcome.exit_code == 0, outcome.output
    page = (run / "report.html").read_text(encoding="utf-8")
    before = (small_demo.run / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg") == before.count("data:image/jpeg") + 1
    assert "Why these words" in page and "Why these words" not in before
    captions = [e["caption"] for e in json.loads((run / "results" / "test.json").read_text())]
    shown = re.search(r'class="sheet".*?<strong>(.*?)</strong>', page, flags=re.DOTALL)
    assert shown is not None and shown[1] in captions


def test_a_report_leaves_out_what_cannot_be_explained(
    small_demo: SmallDemo, tmp_path: Path, caplog: Any
) -> None:
    """Photographs of another size than the features' are named, and the page is made."""
    photos, run = tmp_path / "photos", tmp_path / "run"
    shutil.copytree(small_demo.run, run)
    photos.mkdir()
    for photo in (small_demo.scenes / "images").iterdir():
        Image.new("RGB", (31, 17)).save(photos / photo.name)
    typed = ["report", str(run), "--explained", "1", "--images", str(photos)]
    outcome = CliRunner().invoke(cli, typed)
    assert outcome.exit_code == 0, outcome.output
    assert "left unexplained: " in outcome.output + caplog.text
    assert "Why these words" not in (run / "report.html").read_text(encoding="utf-8")


def meshed_cat(folder: Path) -> Explained:
    """An image of the toy world explained by an untrained M2 with CAT."""
    cache, _ = write_toy(folder)
    words = Vocabulary([*SPECIALS, "a", *COLOURS, *NOUNS])
    config = MeshedCATConfig(
        width=16, heads=2, feed_forward=24, encoder_layers=2, decoder_layers=2, memory=3
    )
    torch.manual_seed(0)
    model = entry("meshed_cat").build(config, {"regions": WIDTH}, len(words))
    record = FeatureCache(cache).read("toy0")
    photo, cpu = Path("toy0.jpg"), torch.device("cpu")
    return explain_record(model.eval(), words, record, photo, "a red dog", cpu, steps=5)


def test_a_sheet_tells_of_gates_memory_history_and_completeness(tmp_path: Path) -> None:
    found = meshed_cat(tmp_path)
    rows = {row.title.split("\n")[0]: row for row in rows_of(found)}
    wanted = ["attribution", "the image adds", "attention", "weight on each", "all history"]
    assert list(rows) == [*wanted, "gate per level"]
    gained = found.attributions.gained  # (T,)
    for off, added in ((0.0, ""), (1.0, ", roughly")):
        scores = {"regions": torch.stack([gained, torch.full_like(gained, off)], dim=1)}  # (T, N)
        told = replace(found, attributions=replace(found.attributions, scores=scores))
        texts = [f"{gain:+.2f} nats{added}" for gain in gained.tolist()]
        assert rows_of(told)[1] == Notes("the image adds", texts)
    note, looks = memory_note(found), found.looks
    assert note is not None and looks is not None and looks.memory is not None
    shares = [float(share) for share in re.findall(r"([\d.]+) %", note)]
    assert shares == pytest.approx([100 * float(m) for m in looks.memory.mean(dim=1)], abs=0.06)
    plain = replace(found, looks=None)
    assert memory_note(plain) is None and len(rows_of(plain)) == 2


def test_an_image_that_is_nowhere(small_demo: SmallDemo) -> None:
    outcome = explain("no-such-image", small_demo)
    assert isinstance(outcome.exception, Exception)
    assert "'no-such-image' is no file, and" in str(outcome.exception)
    moved = explain(first(small_demo)["image_id"], small_demo, "--images", small_demo.run)
    assert "missing" in str(moved.exception)


def test_a_panel_shows_the_top_region_and_fades_the_others() -> None:
    photo = Image.new("RGB", (60, 40), "black")
    boxes = np.array([[0, 0, 20, 40], [20, 0, 40, 40], [40, 0, 60, 40]], dtype=float)
    shown = np.asarray(panel(photo, boxes, np.array([-1.0, 3.0, 1.0])))
    assert shown[20, 30].tolist() == [0, 0, 0]  # the top region at full opacity
    assert shown[20, 20].tolist() == list(RED)  # its outline
    assert shown[20, 5].tolist() == [round(255 * (1 - FAINTEST))] * 3  # the least score
    half = FAINTEST + (1 - FAINTEST) * 0.5
    assert abs(int(shown[20, 50][0]) - 255 * (1 - half)) <= 1


def test_equal_scores_and_boxes_without_extent_are_drawn() -> None:
    photo = Image.new("RGB", (30, 30), "black")
    boxes = np.array([[29.5, 29.5, 30, 30], [0, 0, 0, 0]], dtype=float)
    assert panel(photo, boxes, np.zeros(2)).size == (30, 30)


def test_a_sheet_has_a_column_per_word() -> None:
    photo = np.zeros((20, 40, 3), dtype=np.uint8)
    boxes, count = np.array([[0, 0, 40, 20]], dtype=float), COLUMNS + 2
    words = [f"w{n}" for n in range(count)]
    rows: list[Row] = [
        Map("map", np.ones((count, 1))),
        Bars("bars", [np.full(n + 1, 0.5) for n in range(count)]),
        Notes("notes", words),
    ]
    one, two = draw(photo, boxes, words[:2], rows), draw(photo, boxes, words, rows)
    assert two.width > one.width and two.height > 1.8 * one.height
    assert Image.open(io.BytesIO(png(two))).size == two.size
