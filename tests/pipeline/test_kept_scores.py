"""What an evaluation of a run leaves of the earlier ones, and how it says how it was made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from evaluate.scores import Scores
from pipeline import decoding
from pipeline.cli import main
from pipeline.kept_scores import write_scores
from pipeline.results import read_results
from pipeline.run_folder import RunFolder
from pipeline.scoring import Settings, Source, evaluate
from pipeline.training import train
from tests.caption.toy import write_toy
from tests.pipeline.test_train import CPU, quick

REFERENCES = {
    "1": ["A man rides a horse."],
    "2": ["Two dogs play in the snow."],
    "3": ["A red bus on a street."],
}
CAPTIONS = {"1": "a man on a horse", "2": "two dogs in the snow", "3": "a red bus"}
DOMAINS = {"1": "in-domain", "2": "in-domain", "3": "out-domain"}


def keep(
    folder: Path,
    metrics: Sequence[str],
    captions: dict[str, str] = CAPTIONS,
    references: dict[str, list[str]] = REFERENCES,
    domains: dict[str, str] | None = None,
    decoding: dict | None = None,
) -> dict:
    """Score and keep; the content of the file then."""
    (folder / "results.json").write_text(json.dumps(captions))
    results = read_results(folder / "results.json")
    (scored,) = evaluate(
        [Source(name="net", results=results, decoding=decoding)],
        references,
        Settings(metrics=tuple(metrics), resamples=10),
        references_path=folder,
        domains=domains,
    ).scored
    write_scores(folder / "scores.json", scored)
    return json.loads((folder / "scores.json").read_text())


def test_metrics_of_the_same_captions_are_added(tmp_path: Path) -> None:
    whole = keep(tmp_path, ("bleu", "rouge", "cider"), domains=DOMAINS)
    (tmp_path / "scores.json").unlink()
    keep(tmp_path, ("bleu", "cider"), domains=DOMAINS)
    assert keep(tmp_path, ("rouge",), domains=DOMAINS) == whole
    again = keep(tmp_path, ("cider",))
    assert again == whole and Scores.from_json(json.dumps(again)).summed()
    parts = [part.split(":")[0] for part in again["signature"].split("|")]
    assert parts == ["images", "refs", "tok", "bleu", "rouge", "cider", "version"]


@pytest.mark.parametrize(
    "other",
    [
        {"captions": {**CAPTIONS, "3": "a bus"}},
        {"references": {**REFERENCES, "3": ["A bus on a street."]}},
        {"references": {**REFERENCES, "3": ["A red bus on a street.", "A bus."]}},
    ],
)
def test_scores_of_other_captions_or_references_are_replaced(tmp_path: Path, other: dict) -> None:
    keep(tmp_path, ("bleu", "rouge"))
    assert keep(tmp_path, ("cider",), **other)["corpus"].keys() == {"CIDEr"}


def test_scores_of_another_way_of_decoding_are_not_replaced_in_silence(tmp_path, caplog) -> None:
    keep(tmp_path, ("bleu",), decoding={"beam": 3, "features": "/a/features"})
    keep(tmp_path, ("rouge",), decoding={"beam": 3, "features": "/b/features"})
    assert not caplog.text, "the captions are the same"
    other = {**CAPTIONS, "3": "a bus"}
    keep(tmp_path, ("bleu",), other, decoding={"beam": 3, "features": "/c/features"})
    assert "scores.json: replaces the scores with features /b/features" in caplog.text


def test_a_metric_that_is_away_by_now_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keep(tmp_path, ("bleu", "meteor"))
    monkeypatch.setenv("PIPELINE_JAVA", "/no/such/java")
    assert keep(tmp_path, ("bleu", "meteor")) == before


def test_scores_that_say_nothing_of_their_captions_are_replaced(tmp_path: Path) -> None:
    for kept in ("{", "[]", json.dumps({"schema": 1, "corpus": {"Bleu_1": 1}})):
        (tmp_path / "scores.json").write_text(kept)
        assert keep(tmp_path, ("cider",))["corpus"].keys() == {"CIDEr"}


def typed(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def evaluated(run: Path, *more: str | Path) -> int:
    quickly = ("--metrics", "rouge", "--resamples", "0", "--device", "cpu")
    return typed("eval", "--run", run, *more, *quickly)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Path, Path]:
    folder = tmp_path_factory.mktemp("kept")
    cache, captions = write_toy(folder)
    run, _ = train(quick("xe.epochs=1", "scst.epochs=0"), captions, cache, folder / "run", CPU)
    return run, cache, captions


def test_what_is_not_the_runs_own_has_files_of_its_own(
    trained: tuple[RunFolder, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, cache, captions = trained
    own = run.recipe.decoding.beam
    assert evaluated(run.path) == 0
    assert "decoded with" not in capsys.readouterr().out
    kept = {name: run.path / name / "test.json" for name in ("results", "scores")}
    before = {name: path.read_bytes() for name, path in kept.items()}
    how = json.loads(before["scores"])["decoding"]
    assert how["beam"] == own and how["max_words"] == run.recipe.decoding.max_words
    assert (how["captions"], how["features"]) == (str(captions), str(cache))
    assert how["unlike_run"] == []
    mine, copied = tmp_path / "mine.json", tmp_path / "copied"
    shutil.copy(captions, mine)
    shutil.copytree(cache, copied)
    for name, said, more in (
        (f"test-beam{own + 1}", f"beam {own + 1} (the run's own: {own})", ("--beam", own + 1)),
        ("test-captions-mine", f"captions {mine} (the run's own", ("--captions", mine)),
        ("test-features-copied", f"features {copied} (the run's own", ("--features", copied)),
        ("test", "", ("--beam", own, "--captions", captions, "--features", cache)),
    ):
        assert evaluated(run.path, *map(str, more)) == 0
        out = capsys.readouterr().out
        assert f"decoded with {said}" in out if said else "decoded with" not in out
        assert all((run.path / folder / f"{name}.json").is_file() for folder in kept)
        assert kept["results"].read_bytes() == before["results"]
    assert kept["scores"].read_bytes() == before["scores"]
    assert typed("report", run.path, "--explained", "0") == 0
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert f"test-beam{own + 1} was decoded with beam {own + 1}" in page
    assert "test was decoded with" not in page


def test_a_run_that_was_moved_with_its_files_keeps_its_names(
    trained: tuple[RunFolder, Path, Path], tmp_path: Path
) -> None:
    run, cache, captions = trained
    moved = tmp_path / "moved"
    shutil.copytree(run.path, moved)
    config = (moved / "config.yaml").read_text().replace(str(captions.parent), "/far/away")
    (moved / "config.yaml").write_text(config)
    shutil.rmtree(moved / "results", ignore_errors=True)
    assert evaluated(moved, "--captions", captions, "--features", cache) == 0
    assert [path.name for path in (moved / "results").iterdir()] == ["test.json"]


def test_trouble_is_found_before_decoding(
    trained: tuple[RunFolder, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, _, captions = trained

    def never(*_: object, **__: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(decoding, "decode_ids", never)
    few, mine = tmp_path / "few", tmp_path / "mine.json"
    shutil.copytree(run.path, few)
    content = json.loads(captions.read_text())
    tested = next(image for image in content["images"] if image["split"] == "test")
    tested["sentences"] = tested["sentences"][:1] * 3
    mine.write_text(json.dumps(content))
    config = (few / "config.yaml").read_text().replace(str(captions), str(mine))
    (few / "config.yaml").write_text(config)
    assert evaluated(run.path, few) == 1
    said = capsys.readouterr().err
    assert f"{few} and {run.path} have different references for split 'test'" in said
    shutil.rmtree(few / "scores", ignore_errors=True)
    (few / "scores").write_text("no folder")
    assert evaluated(few) == 1
    assert f"{few / 'scores'}: cannot be written" in capsys.readouterr().err
