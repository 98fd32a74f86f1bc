"""Inputs that are something else, and captions without words: both are said plainly."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from caption.data import read_captions
from caption.errors import CaptionError
from extract.cache import FeatureCache
from pipeline.cli import main
from pipeline.explaining import open_image
from pipeline.results import canonical_id, places_in
from pipeline.run_folder import open_run
from pipeline.training import train
from tests.caption.toy import write_toy
from tests.pipeline.test_train import CPU, quick

OWN = {"features": None, "images": None, "boxes": None, "device": "cpu"}


@pytest.fixture(scope="module")
def speechless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features, a photograph and a run that has learned nothing."""
    folder = tmp_path_factory.mktemp("speechless")
    cache, captions = write_toy(folder)
    recipe = quick("xe.epochs=1", "xe.learning_rate=1e-9", "scst.epochs=0")
    train(recipe, captions, cache, folder / "run", CPU)
    (folder / "toy1.jpg").write_bytes(b"its features are in the cache")
    return folder


def caption(folder: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_a_run_folder_is_no_photograph(speechless, monkeypatch, capsys) -> None:
    typed = ("caption", "toy1.jpg", "--run", "run", "run")
    assert caption(speechless, *typed, monkeypatch=monkeypatch) == 2
    assert "run is a run folder, not photographs" in (said := capsys.readouterr().err)
    assert "repeat the option: --run run --run run" in said
    assert caption(speechless, "explain", "run", "--run", "run", monkeypatch=monkeypatch) == 2
    assert "run is a run folder (one run is explained at a time)" in capsys.readouterr().err


def test_captions_without_words_are_warned_of(speechless, monkeypatch, capsys) -> None:
    monkeypatch.setattr("caption.vocabulary.Vocabulary.decode", lambda *_: [])
    typed = ("caption", "toy1.jpg", "--run", "run", "--features", "features", "--json")
    assert caption(speechless, *typed, monkeypatch=monkeypatch) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["captions"][0]["captions"] == [""]
    assert "warning: empty captions: 1 of 1 (toy1.jpg)" in found.err


def test_an_empty_caption_is_not_explained(speechless, monkeypatch, capsys) -> None:
    typed = ("explain", "toy1", "--run", "run", "--caption", " ")
    assert caption(speechless, *typed, monkeypatch=monkeypatch) == 2
    assert "--caption is empty: give the words to explain" in capsys.readouterr().err


def test_an_explanation_says_how_far_it_is(speechless, monkeypatch, capsys) -> None:
    """The toy's photographs are not there; its attributions come first."""
    typed = ("explain", "toy1", "--run", "run", "--steps", "5", "--caption", "a red dog")
    assert caption(speechless, *typed, monkeypatch=monkeypatch) == 1
    assert "explain toy1, 3 words: " in (said := capsys.readouterr().err)
    assert " gradients" in said


def test_a_demo_goes_into_no_folder_of_other_things(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    assert caption(tmp_path, "demo", "--out", ".", monkeypatch=monkeypatch) == 1
    assert "is no demo but holds thesis.tex; give an empty or new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_interrupt_promises_to_go_on_only_where_that_is_so(
    speechless, monkeypatch, capsys
) -> None:
    """Captioning begins again; a comparison goes on."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.commands.caption.caption_photos", interrupted)
    monkeypatch.setattr("pipeline.comparison.run_comparison", interrupted)
    assert caption(speechless, "caption", ".", "--run", "run", monkeypatch=monkeypatch) == 130
    assert capsys.readouterr().err.strip() == "interrupted"
    assert caption(speechless, "reproduce", "--out", "x", monkeypatch=monkeypatch) == 130
    assert "interrupted; the same command continues" in capsys.readouterr().err


def test_an_interrupt_with_nothing_kept_promises_nothing(
    speechless, tmp_path, monkeypatch, capsys
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("pipeline.training.read_captions", interrupted)
    given = ("--recipe", "flickr8k", "--features", "features", "--captions", "captions.json")
    typed = ("train", *given, "--out", str(tmp_path / "new"))
    assert caption(speechless, *typed, monkeypatch=monkeypatch) == 130
    assert "the same command starts at the beginning" in capsys.readouterr().err


def test_a_photograph_that_is_missing_is_not_another(tmp_path, capsys) -> None:
    """An id that is another photograph's name does not stand for that photograph."""
    cache, _ = write_toy(tmp_path)
    entries = [{"id": "toy3", "file_name": "gone.jpg", "split": "train"}]
    entries += [{"id": "9", "file_name": "toy3.jpg", "split": "train"}]
    entries += [{"id": "8", "file_name": "toy8.jpg", "split": "val"}]
    notes = [{"image_id": e["id"], "caption": "a red ball"} for e in entries]
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"images": entries, "annotations": notes}))
    with pytest.raises(CaptionError, match=r"1 of 2 training images.*no features.*: gone"):
        train(quick("data.tokenizer=ptb"), path, cache, tmp_path / "run", CPU)
    with pytest.raises(SystemExit) as ended:
        main(["cache", "verify", str(cache), "--ids", str(path)])
    assert ended.value.code == 1 and "gone" in capsys.readouterr().out
    notes.append({"image_id": "toy8", "caption": "of an image without a file name"})
    path.write_text(json.dumps({"images": entries, "annotations": notes}))
    with pytest.raises(SystemExit) as ended:
        main(["cache", "verify", str(cache), "--ids", str(path)])
    assert ended.value.code == 1 and "toy8" not in capsys.readouterr().out


def test_own_numbers_of_images_do_not_cross_their_captions(tmp_path, capsys, caplog) -> None:
    """COCO's form as labelling programs write it: ids are other photographs' names, or nobody's."""
    cache, captions = write_toy(tmp_path)
    images = json.loads(captions.read_text())["images"]
    places = {image["filename"]: place for place, image in enumerate(images)}
    losses = {}
    for kind, name in (("names", "{}"), ("numbers", "{}"), ("crossed", "toy{}")):
        entries, notes = [], []
        for file, place in places.items():
            other = (place + 1) % len(images)
            key = Path(file).stem if kind == "names" else name.format(other)
            entries.append({"id": key, "file_name": file, "split": images[place]["split"]})
            notes += [{"image_id": key, "caption": s["raw"]} for s in images[place]["sentences"]]
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps({"images": entries, "annotations": notes}))
        out = tmp_path / f"run-{kind}"
        train(quick("xe.epochs=1", "scst.epochs=0", "data.tokenizer=ptb"), path, cache, out, CPU)
        told = (out / "metrics.jsonl").read_text().splitlines()
        losses[kind] = [json.loads(line).get("loss") for line in told]
        with pytest.raises(SystemExit) as ended:
            main(["cache", "verify", str(cache), "--ids", str(path)])
        assert ended.value.code == 0, capsys.readouterr().out
        found = places_in(FeatureCache(cache), read_captions(path).images)
        for entry in entries:
            assert found[canonical_id(entry["id"])] == Path(entry["file_name"]).stem
            record, _ = open_image(open_run(out), (), entry["id"], **OWN)
            assert record.image_id == Path(entry["file_name"]).stem
    assert losses["names"] == losses["numbers"] == losses["crossed"]


def test_empty_captions_to_learn_from_are_said(tmp_path, caplog) -> None:
    cache, captions = write_toy(tmp_path)
    content = json.loads(captions.read_text())
    content["images"][0]["sentences"][1] = {"raw": " ", "tokens": []}
    captions.write_text(json.dumps(content))
    train(quick("xe.epochs=1", "scst.epochs=0"), captions, cache, tmp_path / "run", CPU)
    assert "1 captions are empty, the first of image toy0" in caplog.text
