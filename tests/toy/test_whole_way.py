"""The whole way on 60 generated scenes: pictures to features, training, scores, table, report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline import demo, steps
from pipeline.cli import cli
from tests.conftest import QUICK, SmallDemo


def pipeline(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_the_table_has_every_row(small_demo: SmallDemo) -> None:
    table = small_demo.table
    for row in demo.ROWS:
        line = next(text for text in table.splitlines() if text.startswith(f"{row}  "))
        assert len(re.findall(r"\d+\.\d", line)) == 6  # B-1 to B-4, R, C


def test_the_report_holds_all_it_shows(small_demo: SmallDemo) -> None:
    report = small_demo.report
    page = report.read_text(encoding="utf-8")
    assert page.count("<polyline") == 5 and page.count("data:image/jpeg") == 6
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import|<script""", page)


def test_a_second_demo_does_no_work_twice(
    small_demo: SmallDemo, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = small_demo.out, small_demo.table

    def never(*args: object, **options: object) -> None:
        raise AssertionError("work was done twice")

    for name in ("extract", "train", "decode_runs"):
        monkeypatch.setattr(steps, name, never)
    monkeypatch.setattr(demo, "METRICS", ("bleu", "rouge", "cider"))
    assert demo.run_demo(out, 60, "cpu", QUICK)[0] == table


def test_own_photos_get_the_captions_that_evaluation_gave(small_demo: SmallDemo) -> None:
    out = small_demo.out
    run, scenes = out / "transformer", out / "scenes"
    results = json.loads((run / "results" / "test.json").read_text(encoding="utf-8"))
    photos = [scenes / "images" / f"{entry['image_id']}.jpg" for entry in results]
    boxes = ("--boxes", scenes / "boxes.json", "--device", "cpu", "--json")
    outcome = pipeline("caption", *photos, "--run", run, *boxes)
    assert outcome.exit_code == 0, outcome.output
    found = {e["image_id"]: e["captions"][0] for e in json.loads(outcome.stdout)["captions"]}
    assert found == {entry["image_id"]: entry["caption"] for entry in results}


def test_a_broken_photo_is_named_and_the_others_are_captioned(
    small_demo: SmallDemo, tmp_path: Path
) -> None:
    out = small_demo.out
    photo = next((out / "scenes" / "images").glob("*.jpg"))
    (tmp_path / "broken.jpg").write_bytes(photo.read_bytes()[:800])
    arguments = ("--run", out / "transformer", "--boxes", out / "scenes" / "boxes.json", "--json")
    outcome = CliRunner().invoke(
        cli,
        ["caption", str(photo), str(tmp_path / "broken.jpg"), *map(str, arguments)],
        standalone_mode=False,
    )
    assert outcome.return_value == 3
    content = json.loads(outcome.stdout)
    assert len(content["captions"]) == 1 and content["failed"][0]["file"].endswith("broken.jpg")


def test_features_made_otherwise_are_refused(small_demo: SmallDemo, tmp_path: Path) -> None:
    out = small_demo.out
    scenes, other = out / "scenes", tmp_path / "other"
    boxes = ("--boxes", scenes / "boxes.json", "-o", "size=256", "--device", "cpu")
    made_other = pipeline(
        "extract", scenes / "images", "--preset", "imagenet-regions", "--out", other, *boxes
    )
    assert made_other.exit_code == 0, made_other.output
    outcome = pipeline("eval", "--run", out / "transformer", "--features", other)
    assert outcome.exit_code == 1
    assert "settings.size: 224 / 256" in str(outcome.exception)


def test_the_report_finds_its_pictures_from_any_folder(
    small_demo: SmallDemo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = small_demo.report
    before = report.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert pipeline("report", report.parent, "--explained", 0).exit_code == 0
    assert report.read_text(encoding="utf-8") == before


def test_a_refused_start_leaves_no_folder(small_demo: SmallDemo, tmp_path: Path) -> None:
    out = small_demo.out
    arguments = ("--features", out / "features", "--captions", out / "scenes" / demo.DATASET)
    refused = pipeline("train", "--recipe", "flickr8k", *arguments, "--out", tmp_path / "run")
    assert refused.exit_code == 1 and "-o model.stream=regions" in str(refused.exception)
    assert not (tmp_path / "run").exists()
