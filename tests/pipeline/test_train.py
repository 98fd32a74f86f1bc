"""Training as a user runs it: it learns, resumes bit for bit, and refuses what is wrong."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from caption import checkpoint
from caption.data import read_captions
from caption.errors import CaptionError
from caption.trainer import Trainer
from extract.cache import ImageFeatures, Stream
from extract.errors import CacheError
from extract.lock import Lock
from extract.writer import ALL, CacheWriter
from pipeline import recipe as recipes
from pipeline.commands.train import command
from pipeline.decoding import decode_split
from pipeline.errors import PipelineError
from pipeline.training import is_finished, train
from tests.caption.toy import META, WIDTH, write_toy

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


def test_views_and_hidden_rows_are_for_training_alone(toy, tmp_path, monkeypatch) -> None:
    cache, captions = toy
    view, _ = write_toy(tmp_path, seed=9, view="mirrored")
    seen = []
    monkeypatch.setattr(Trainer, "_log", lambda self, line: seen.append(line))
    settings = ("xe.epochs=1", "scst.epochs=0", "xe.learning_rate=1e-12", "model.dropout=0")
    found = {}
    for name, more in {
        "plain": (),
        "views": (f"data.views=[{view}]",),
        "hidden": ("data.hidden_rows=0.4",),
    }.items():
        seen.clear()
        train(quick(*settings, *more), captions, cache, tmp_path / name, CPU)
        found[name] = [line.get("loss") for line in seen], seen[-1]["validation"]
    for name in ("views", "hidden"):
        assert found[name][0] != found["plain"][0] and found[name][1] == found["plain"][1]


def test_a_view_is_of_these_features(toy, tmp_path) -> None:
    cache, captions = toy
    with pytest.raises(PipelineError, match=r"is no view of .*\n  nothing\nwanted settings.view"):
        train(quick(f"data.views=[{cache}]"), captions, cache, tmp_path / "run", CPU)
    few, _ = write_toy(tmp_path, images=4, view="cropped")
    with pytest.raises(CaptionError, match="training images.* have no features in"):
        train(quick(f"data.views=[{few}]"), captions, cache, tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize("baseline", ["beams", "greedy", "draws"])
def test_resume_after_a_stop_anywhere_is_bit_equal(toy, tmp_path, baseline, monkeypatch) -> None:
    cache, captions = toy
    hidden = f"data.hidden_rows={0.3 if baseline == 'greedy' else 0}"
    average = f"average={0.5 if baseline == 'draws' else 0}"
    recipe = quick("xe.epochs=2", f"scst.baseline={baseline}", "save_every=0", hidden, average)
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
        for weights in ("last/model.safetensors", "best/model.safetensors"):
            assert (resumed.path / weights).read_bytes() == (whole.path / weights).read_bytes()


def test_the_running_mean_of_the_weights_is_what_is_kept(toy, tmp_path, monkeypatch) -> None:
    cache, captions = toy
    update, after = Trainer._update, []

    def watched(self, name, batch, loss_of):
        update(self, name, batch, loss_of)
        after.append(next(self.model.parameters()).detach().clone())

    monkeypatch.setattr(Trainer, "_update", watched)
    recipe = quick("average=0.7", "xe.epochs=1", "scst.epochs=0")
    run, _ = train(recipe, captions, cache, tmp_path / "run", CPU)
    mean = after[0]
    for weight in after[1:]:
        mean = 0.7 * mean + 0.3 * weight
    kept = next(run.load(CPU)[0].parameters())
    torch.testing.assert_close(kept, mean)
    assert not torch.allclose(kept, after[-1])


def test_a_killed_process_is_continued(toy, tmp_path) -> None:
    cache, captions = toy
    out = tmp_path / "run"
    arguments = ["--features", str(cache), "--captions", str(captions)]
    for setting in quick_settings("xe.epochs=6", "save_every=0"):
        arguments += ["-o", setting]
    line = [sys.executable, "-m", "pipeline", "train", "--recipe", "transformer"]
    process = subprocess.Popen([*line, *arguments, "--out", str(out)], stderr=subprocess.PIPE)
    while process.poll() is None:
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_process_keeps_its_state_and_is_continued(toy, tmp_path, number) -> None:
    """Between two updates, long before the first checkpoint would have been due."""
    cache, captions = toy
    out, settings = tmp_path / "run", ("xe.epochs=400", "xe.patience=null", "scst.epochs=0")
    arguments = ["--features", str(cache), "--captions", str(captions), "--out", str(out)]
    arguments += [part for setting in (*QUICK, *settings) for part in ("-o", setting)]
    line = [sys.executable, "-m", "pipeline", "train", "--recipe", "transformer", *arguments]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (
        (out / "metrics.jsonl").exists() and len(lines_so_far(out)) >= 3
    ):
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "the state is kept in" in said and "the same command continues" in said
    found = lines_so_far(out)
    state = checkpoint.load_state(out / "last")["position"]
    assert state["metrics_bytes"] == (out / "metrics.jsonl").stat().st_size
    assert found and checkpoint.load_meta(out / "last")["stage"] == "xe"


def test_two_processes_do_not_train_in_one_folder(toy, tmp_path) -> None:
    cache, captions = toy
    recipe = quick("scst.epochs=0")
    out = tmp_path / "run"
    out.mkdir()
    other = Lock(out, ALL)
    other.acquire()
    with pytest.raises(CacheError, match="another process is writing there"):
        train(recipe, captions, cache, out, CPU)
    assert not (out / "config.yaml").exists()
    other.release()
    train(recipe, captions, cache, out, CPU)


def test_a_reader_in_the_midst_of_a_replacement_moves_nothing(tmp_path) -> None:
    folder, model = tmp_path / "best", torch.nn.Linear(2, 1)
    checkpoint.save(folder, model, {"epoch": 1}, None)
    os.replace(folder, old := tmp_path / "best.old")  # as `save` does, before the new one comes
    assert checkpoint.find(folder) == old and not folder.exists()
    checkpoint.save(folder, model, {"epoch": 2}, None)
    assert checkpoint.find(folder) == folder and not old.exists()
    assert checkpoint.load_meta(folder) == {"epoch": 2}


def test_karpathy_images_without_sentences_are_passed_over(tmp_path) -> None:
    sentences = [{"raw": "a dog", "tokens": ["a", "dog"]}]
    images = [
        {"filename": f"{name}.jpg", "split": "val", "sentences": found}
        for name, found in (("a", sentences), ("b", []))
    ]
    path = tmp_path / "captions.json"
    path.write_text(json.dumps({"images": images}))
    assert [image.image_id for image in read_captions(path).split("val")] == ["a"]


def epochs_told(caplog) -> list[str]:
    """What was said of each epoch, with its mean loss; forgets it all."""
    said = [r.getMessage() for r in caplog.records if "validation CIDEr-D" in r.getMessage()]
    caplog.clear()
    assert said
    return said


@pytest.mark.parametrize("stop", [1, 5, 7])
def test_resume_after_an_interruption_is_bit_equal(
    toy, tmp_path, stop, monkeypatch, caplog
) -> None:
    """In the first epoch, the second, and self-critical training; no checkpoint was due."""
    cache, captions = toy
    recipe = quick("xe.epochs=2", "save_every=1e9")
    caplog.set_level(logging.INFO)
    whole, _ = train(recipe, captions, cache, tmp_path / "whole", CPU)
    told = epochs_told(caplog)
    update, count = Trainer._update, 0

    def pressing(self, name, batch, loss_of):
        nonlocal count
        count += 1
        if count == stop:
            signal.raise_signal(signal.SIGINT)  # the update goes on to its end
        return update(self, name, batch, loss_of)

    monkeypatch.setattr(Trainer, "_update", pressing)
    with pytest.raises(KeyboardInterrupt, match="the state is kept in"):
        train(recipe, captions, cache, tmp_path / "run", CPU)
    monkeypatch.setattr(Trainer, "_update", update)
    assert sum("loss" in line for line in lines(tmp_path / "run")) == stop
    resumed, _ = train(recipe, captions, cache, tmp_path / "run", CPU)
    assert lines(resumed.path) == lines(whole.path)
    assert epochs_told(caplog) == told
    weights = "last/model.safetensors"
    assert (resumed.path / weights).read_bytes() == (whole.path / weights).read_bytes()


def test_an_interruption_of_validation_keeps_the_epoch(toy, tmp_path, monkeypatch, caplog) -> None:
    cache, captions = toy
    recipe = quick("xe.epochs=2", "scst.epochs=0", "save_every=1e9")
    caplog.set_level(logging.INFO)
    whole, _ = train(recipe, captions, cache, tmp_path / "whole", CPU)
    told = epochs_told(caplog)
    with monkeypatch.context() as patch:
        patch.setattr(
            "pipeline.training.decode_ids", lambda *_: signal.raise_signal(signal.SIGTERM)
        )
        with pytest.raises(KeyboardInterrupt, match="the state is kept in"):
            train(recipe, captions, cache, tmp_path / "run", CPU)
    resumed, _ = train(recipe, captions, cache, tmp_path / "run", CPU)
    assert lines(resumed.path) == lines(whole.path)
    assert epochs_told(caplog) == told


def test_an_end_by_patience_and_wordless_captions_are_said(
    toy, tmp_path, caplog, monkeypatch
) -> None:
    cache, captions = toy
    monkeypatch.setattr("caption.vocabulary.Vocabulary.decode", lambda *_: [])
    settings = ("xe.patience=1", "xe.learning_rate=1e-9", "scst.epochs=0")
    with caplog.at_level(logging.INFO):
        _, position = train(quick(*settings), captions, cache, tmp_path / "run", CPU)
    assert "stopped after epoch 2: 1 epoch without a better CIDEr-D (xe.patience)" in caplog.text
    assert position.best == 0 and "the best validation CIDEr-D is 0.0" in caplog.text
    assert "-o xe.epochs=84" in caplog.text  # of 3 updates each
    assert "(kept as the latest: no captions yet that fit)" in caplog.text
    # Of captioners that say nothing the one trained longest is kept.
    best = checkpoint.find(tmp_path / "run" / "best")
    assert best is not None and json.loads((best / "meta.json").read_text())["epoch"] == 2


@pytest.mark.parametrize(
    ("recipe", "kept", "said"),
    [
        (
            "cat/cat",
            "grids",
            "the stream 'regions', the cache has grids; type -o model.stream=grids",
        ),
        (
            "pat/position-aware",
            "grids",
            "the streams 'pyramid_high' and 'pyramid_low', the cache has grids, not 'pyramid_high'"
            " and 'pyramid_low'; extract with a preset that makes them",
        ),
    ],
)
def test_a_missing_stream_comes_first(tmp_path, recipe, kept, said) -> None:
    """Before the images without features are listed; the hint is enough to go on."""
    with CacheWriter(tmp_path / "features", META, {kept: Stream(WIDTH)}) as writer:
        writer.commit(
            [
                ImageFeatures(
                    image_id="other", width=8, height=8, streams={kept: np.zeros((2, WIDTH))}
                )
            ]
        )
    _, captions = write_toy(tmp_path / "toy")
    with pytest.raises(CaptionError, match=re.escape(said)):
        train(recipes.load(recipe), captions, tmp_path / "features", tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("coco.json", 'add a key "split" with train, val or test to each entry of `images`'),
        ("captions.csv", "add a column `split` with train, val or test in every line"),
    ],
)
def test_captions_without_splits_are_told_where_they_go(toy, tmp_path, form, said) -> None:
    path = tmp_path / form
    images = [{"id": 1, "file_name": "toy1.jpg"}]
    coco = {"images": images, "annotations": [{"image_id": 1, "caption": "a dog"}]}
    path.write_text(json.dumps(coco) if form == "coco.json" else "image,caption\ntoy1,a dog\n")
    with pytest.raises(CaptionError, match=re.escape(said)):
        train(quick(), path, toy[0], tmp_path / "run", CPU)


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
        ("xe.epochs=many", "xe: epochs is 'many', wanted a whole number"),
        ("xe=3", "xe is 3, wanted a group of settings"),
        ("model.name=transfomer", "did you mean 'transformer'"),
        ("model.widht=3", "did you mean 'width'"),
        ("scst.baseline=mean", "wanted one of beams, greedy, draws"),
        ("nothing", "wanted key=value"),
        *(
            (setting, "wanted (0 or more|more than 0|0 to 4294967295|0 or more, below 1)")
            for setting in (
                "xe.epochs=-3 xe.epochs=0 xe.patience=0 xe.patience=-1 xe.warmup=-1 seed=-1"
                " seed=4294967296 scst.epochs=-1 scst.patience=0 data.train_images=0"
                " data.validation_images=0 data.captions=0 save_every=-1 xe.smoothing=1 xe.clip=0"
                " xe.learning_rate=.nan xe.betas=0.9,1.5 scst.betas=-0.1,0.9"
            ).split()
        ),
    ],
)
def test_wrong_settings_are_named(override, message) -> None:
    with pytest.raises((PipelineError, CaptionError), match=message):
        recipes.load("flickr8k", [override])
