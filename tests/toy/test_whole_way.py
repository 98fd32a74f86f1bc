"""The whole way on 60 generated scenes: pictures to features, training, scores, table, report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline import demo
from pipeline.cli import cli

QUICK = (
    "xe.epochs=2",
    "xe.warmup=5",
    "scst.epochs=1",
    "model.width=32",
    "model.feed_forward=64",
    "vocabulary.min_count=1",
    "decoding.beam=2",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    out = tmp_path_factory.mktemp("whole")
    patch = pytest.MonkeyPatch()
    patch.setattr(demo, "METRICS", ("bleu", "rouge", "cider"))
    patch.chdir(out)  # `make demo` gives a relative folder too
    table, report = demo.run_demo(Path("demo"), 60, "cpu", QUICK)
    patch.undo()
    return out / "demo", table, out / report


def pipeline(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_the_table_has_every_row(made: tuple[Path, str, Path]) -> None:
    _, table, _ = made
    for row in demo.ROWS:
        line = next(text for text in table.splitlines() if text.startswith(f"{row}  "))
        assert len(re.findall(r"\d+\.\d", line)) == 6  # B-1 to B-4, R, C


def test_the_report_holds_all_it_shows(made: tuple[Path, str, Path]) -> None:
    _, _, report = made
    page = report.read_text(encoding="utf-8")
    assert page.count("<polyline") == 3 and page.count("data:image/jpeg") == 6
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import|<script""", page)


def test_a_second_demo_does_no_work_twice(
    made: tuple[Path, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table, _ = made

    def never(*args: object, **options: object) -> None:
        raise AssertionError("work was done twice")

    for name in ("extract", "train", "decode_split"):
        monkeypatch.setattr(demo, name, never)
    monkeypatch.setattr(demo, "METRICS", ("bleu", "rouge", "cider"))
    assert demo.run_demo(out, 60, "cpu", QUICK)[0] == table


def test_own_photos_get_the_captions_that_evaluation_gave(made: tuple[Path, str, Path]) -> None:
    out, _, _ = made
    run, scenes = out / "transformer", out / "scenes"
    results = json.loads((run / "results" / "test.json").read_text(encoding="utf-8"))
    photos = [scenes / "images" / f"{entry['image_id']}.jpg" for entry in results]
    boxes = ("--boxes", scenes / "boxes.json", "--device", "cpu", "--json")
    outcome = pipeline("caption", *photos, "--run", run, *boxes)
    assert outcome.exit_code == 0, outcome.output
    found = {e["image_id"]: e["captions"][0] for e in json.loads(outcome.stdout)["captions"]}
    assert found == {entry["image_id"]: entry["caption"] for entry in results}


def test_a_broken_photo_is_named_and_the_others_are_captioned(
    made: tuple[Path, str, Path], tmp_path: Path
) -> None:
    out, _, _ = made
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


def test_features_made_otherwise_are_refused(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    out, _, _ = made
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
    made: tuple[Path, str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, _, report = made
    before = report.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert pipeline("report", report.parent).exit_code == 0
    assert report.read_text(encoding="utf-8") == before


def test_a_refused_start_leaves_no_folder(made: tuple[Path, str, Path], tmp_path: Path) -> None:
    out, _, _ = made
    arguments = ("--features", out / "features", "--captions", out / "scenes" / demo.DATASET)
    refused = pipeline("train", "--recipe", "flickr8k", *arguments, "--out", tmp_path / "run")
    assert refused.exit_code == 1 and "-o model.stream=regions" in str(refused.exception)
    assert not (tmp_path / "run").exists()
