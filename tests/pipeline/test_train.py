"""Training as a user runs it: it learns, resumes bit for bit, and refuses what is wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from caption.errors import CaptionError
from caption.trainer import Trainer
from pipeline import recipe as recipes
from pipeline.commands.train import command
from pipeline.decoding import decode_split
from pipeline.errors import PipelineError
from pipeline.training import is_finished, train
from tests.caption.toy import write_toy

CPU = torch.device("cpu")
QUICK = (
    "model.stream=grids",
    "model.width=32",
    "model.heads=4",
    "model.feed_forward=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0.1",
    "data.tokenizer=file",
    "data.max_words=8",
    "vocabulary.min_count=1",
    "vocabulary.splits=train",
    "xe.images=4",
    "xe.captions=3",
    "xe.epochs=12",
    "xe.warmup=10",
    "xe.learning_rate=0.01",
    "xe.patience=12",
    "scst.epochs=2",
    "scst.images=4",
    "scst.samples=3",
    "scst.learning_rate=0.0005",
    "decoding.beam=3",
    "decoding.max_words=8",
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_toy(tmp_path_factory.mktemp("toy"))


def quick(*more: str) -> recipes.Recipe:
    return recipes.load("transformer", [*QUICK, *more])


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_it_learns_and_a_language_model_does_not(toy, tmp_path) -> None:
    cache, captions = toy
    run, position = train(quick(), captions, cache, tmp_path / "run", CPU)
    assert position.stage == "done" and is_finished(run.path)
    assert {line["stage"] for line in lines(run.path)} == {"xe", "scst"}
    blind = quick("data.shuffle_features=true")
    _, other = train(blind, captions, cache, tmp_path / "blind", CPU)
    assert position.best > 2 * other.best
    decoded = decode_split(run.path, "test", num_captions=2)
    results = json.loads(decoded.results.read_text())
    assert [entry["image_id"] for entry in results] == list(decoded.references)
    nbest = json.loads(decoded.nbest.read_text())
    assert all(len(entry["captions"]) == 2 for entry in nbest)
    assert all(a >= b for e in nbest for a, b in [e["log_probabilities"]])
    shuffled = decode_split(run.path, "test", shuffle=True)
    assert shuffled.results.name == "test-shuffled.json"


def test_epochs_without_patience_and_the_schedule_by_epochs(toy, tmp_path) -> None:
    """All epochs are trained however bad they are; each update of an epoch has one rate."""
    cache, captions = toy
    fixed = ("xe.patience=null", "xe.epochs=5", "xe.schedule=epochs", "xe.hold_epochs=3")
    recipe = quick(*fixed, "xe.halve_epochs=1", "scst.epochs=0", "xe.learning_rate=3e-7")
    run, position = train(recipe, captions, cache, tmp_path / "run", CPU)
    better = [line["best"] for line in lines(run.path) if "best" in line]
    assert position.stage == "done" and better == [True] + [False] * 4
    rates = {line["epoch"]: line["lr"] for line in lines(run.path) if "lr" in line}
    assert list(rates.values()) == pytest.approx([1e-7, 2e-7, 3e-7, 1.5e-7, 7.5e-8])


def test_a_run_of_before_a_setting_was_known_goes_on(toy, tmp_path) -> None:
    cache, captions = toy
    recipe = quick("xe.epochs=1", "scst.epochs=0")
    run, _ = train(recipe, captions, cache, tmp_path / "run", CPU)
    config = run.path / "config.yaml"
    config.write_text(re.sub(r"\n +epsilon: .*", "", config.read_text()))
    assert "epsilon" not in config.read_text()
    assert train(recipe, captions, cache, tmp_path / "run", CPU)[1].stage == "done"


@pytest.mark.parametrize(
    "settings",
    [
        ("model.name=normalized_geometry", "model.stream=regions"),
        ("model.name=position_aware", "model.stream=pyramid_high", "model.grid=2,2"),
    ],
)
def test_other_captioners_learn_too(toy, tmp_path, settings: tuple[str, ...]) -> None:
    cache, captions = toy
    recipe = quick(*settings, "scst.baseline=greedy")
    _, position = train(recipe, captions, cache, tmp_path / "run", CPU)
    blind = quick(*settings, "scst.epochs=0", "data.shuffle_features=true")
    _, other = train(blind, captions, cache, tmp_path / "blind", CPU)
    assert position.best > 2 * other.best


@pytest.mark.parametrize("baseline", ["beams", "greedy"])
def test_resume_after_a_stop_anywhere_is_bit_equal(toy, tmp_path, baseline, monkeypatch) -> None:
    cache, captions = toy
    recipe = quick("xe.epochs=2", f"scst.baseline={baseline}", "save_every=0")
    whole, _ = train(recipe, captions, cache, tmp_path / "whole", CPU)
    update = Trainer._update
    for stop in (2, 5, 8):

        class Stopped(Exception):
            pass

        count = 0

        def stopping(self, name, batch, loss_of, stop=stop):
            nonlocal count
            count += 1
            if count > stop:
                raise Stopped
            return update(self, name, batch, loss_of)

        out = tmp_path / f"stop{stop}"
        monkeypatch.setattr(Trainer, "_update", stopping)
        with pytest.raises(Stopped):
            train(recipe, captions, cache, out, CPU)
        monkeypatch.setattr(Trainer, "_update", update)
        resumed, _ = train(recipe, captions, cache, out, CPU)
        assert lines(resumed.path) == lines(whole.path)
        weights = "last/model.safetensors"
        assert (resumed.path / weights).read_bytes() == (whole.path / weights).read_bytes()


def test_a_killed_process_is_continued(toy, tmp_path) -> None:
    cache, captions = toy
    out = tmp_path / "run"
    arguments = ["--features", str(cache), "--captions", str(captions)]
    for setting in quick_settings("xe.epochs=6", "save_every=0"):
        arguments += ["-o", setting]
    line = [sys.executable, "-m", "pipeline", "train", "--recipe", "transformer"]
    process = subprocess.Popen([*line, *arguments, "--out", str(out)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "metrics.jsonl").exists() and len(lines_so_far(out)) >= 8:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    result = CliRunner().invoke(command, ["--out", str(out), "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    recipe = quick("xe.epochs=6", "save_every=0")
    whole, _ = train(recipe, captions, cache, tmp_path / "whole", CPU)
    assert [x.get("loss") for x in lines(out)] == [x.get("loss") for x in lines(whole.path)]


def quick_settings(*more: str) -> list[str]:
    return [*QUICK, *more]


def lines_so_far(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def test_a_loss_that_is_no_number_names_the_images(toy, tmp_path, monkeypatch) -> None:
    cache, captions = toy
    monkeypatch.setattr(
        "caption.trainer.cross_entropy", lambda *a: torch.tensor(float("nan"), requires_grad=True)
    )
    with pytest.raises(CaptionError, match=r"loss is nan .* images toy\d+, toy\d+"):
        train(quick(), captions, cache, tmp_path / "run", CPU)


def test_captioned_images_without_features_stop_the_run(toy, tmp_path) -> None:
    cache, captions = toy
    content = json.loads(captions.read_text())
    sentences = content["images"][0]["sentences"]
    content["images"] += [
        {"filename": f"absent{k}.jpg", "split": "train", "sentences": sentences} for k in range(3)
    ]
    wider = tmp_path / "more.json"
    wider.write_text(json.dumps(content))
    with pytest.raises(
        CaptionError, match="absent0, absent1, absent2\nmake them: pipeline extract"
    ):
        train(quick(), wider, cache, tmp_path / "run", CPU)


def test_other_settings_into_the_same_folder_are_refused(toy, tmp_path) -> None:
    cache, captions = toy
    recipe = quick("xe.epochs=1", "scst.epochs=0")
    train(recipe, captions, cache, tmp_path / "run", CPU)
    other = recipes.override(recipe, ["xe.learning_rate=0.02"])
    with pytest.raises(PipelineError, match=r"recipe.xe.learning_rate: 0.01 / 0.02"):
        train(other, captions, cache, tmp_path / "run", CPU)


@pytest.mark.parametrize("name", list(recipes.shipped()))
def test_every_shipped_recipe_loads_and_round_trips(name) -> None:
    recipe = recipes.load(name)
    again = recipes.from_mapping(recipes.Recipe, recipes.to_mapping(recipe), "again")
    assert recipe == again and recipe.source


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("xe.epoks=3", "unknown key 'epoks'; did you mean 'epochs'"),
        ("xe.epochs=many", "xe: epochs is 'many', wanted a value of type int"),
        ("xe=3", "xe is 3, wanted a group of settings"),
        ("model.name=transfomer", "did you mean 'transformer'"),
        ("model.widht=3", "did you mean 'width'"),
        ("scst.baseline=mean", "wanted one of beams, greedy"),
        ("nothing", "wanted key=value"),
    ],
)
def test_wrong_settings_are_named(override, message) -> None:
    with pytest.raises((PipelineError, CaptionError), match=message):
        recipes.load("flickr8k", [override])
