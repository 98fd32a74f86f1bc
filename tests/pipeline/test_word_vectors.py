"""Runs whose words are given vectors: made, resumed, decoded, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from caption import checkpoint
from pipeline import training
from pipeline.decoding import decode_split
from pipeline.errors import USER_ERRORS, PipelineError, WrongUsage
from pipeline.recipe import Recipe
from pipeline.run_folder import open_run
from pipeline.training import train
from tests.caption.toy import COLOURS, NOUNS, write_glove, write_toy
from tests.pipeline.test_train import CPU, quick

WORDS = ("a", "is", *NOUNS, *COLOURS, "zebra")  # of the captions' not: there, here, one


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("toy")
    write_glove(folder / "glove.txt", WORDS, 6)
    (folder / "extra.txt").write_text("zebra\n\ndog zebra\n")
    return write_toy(folder)


def recipe(folder: Path, *more: str) -> Recipe:
    given = (f"vocabulary.vectors={folder / 'glove.txt'}", "vocabulary.without_vector=0.3")
    return quick("model.vectors=6", "xe.epochs=2", "scst.epochs=1", *given, *more)


def test_the_run_folder_alone_rebuilds_the_captioner(
    toy: tuple[Path, Path], tmp_path: Path
) -> None:
    cache, captions = toy
    extra = f"vocabulary.extra={cache.parent / 'extra.txt'}"
    glove = write_glove(tmp_path / "glove.txt", WORDS, 6)
    (tmp_path / "extra.txt").write_bytes((cache.parent / "extra.txt").read_bytes())
    run, position = train(recipe(tmp_path, extra), captions, cache, tmp_path / "run", CPU)
    assert position.stage == "done"
    record = json.loads((run.path / "vectors.json").read_text())
    special = ["<unk>", "<pad>", "<bos>", "<eos>"]
    assert record["learned"][:4] == special
    assert set(record["learned"][4:]) == {"there", "here", "one"}
    assert record["given"] == len(WORDS) and record["words"] == len(WORDS) + 3 + 4
    assert record["extra"] == ["zebra"] and len(record["sha256"]) == 64
    assert run.vocabulary().words[-1] == "zebra"
    glove.unlink()
    model, vocabulary = open_run(run.path).load(CPU)
    row = model.words.vectors[vocabulary.ids["zebra"]]  # type: ignore[union-attr,index]
    written = [line.split() for line in (cache.parent / "glove.txt").read_text().splitlines()]
    wanted = {word: [float(v) for v in values] for word, *values in written}
    torch.testing.assert_close(row, torch.tensor(wanted["zebra"]))
    assert decode_split(run.path, "test").results.is_file()
    again, position = train(open_run(run.path).recipe, captions, cache, run.path, CPU)
    assert position.stage == "done"  # a finished run needs the file no more
    (run.path / "vectors.json").unlink()
    with pytest.raises(PipelineError, match="vectors.json: not there.*copy it from"):
        open_run(run.path).load(CPU)


def test_a_run_stopped_before_its_first_checkpoint_wants_the_same_file(
    toy: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, captions = toy
    glove = write_glove(tmp_path / "glove.txt", WORDS, 6)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.Trainer, "run", stop)
        train(recipe(tmp_path), captions, cache, tmp_path / "run", CPU)
    assert checkpoint.find(tmp_path / "run" / "last") is None
    write_glove(glove, WORDS, 6, seed=1)
    with pytest.raises(PipelineError, match="vectors.json: the file of vectors is another now"):
        train(recipe(tmp_path), captions, cache, tmp_path / "run", CPU)
    write_glove(glove, WORDS, 6)
    _, position = train(recipe(tmp_path), captions, cache, tmp_path / "run", CPU)
    assert position.stage == "done"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["vocabulary.vectors=null"], r"model.vectors=6\), but vocabulary.vectors names no file"),
        (["model.vectors=null"], "give their width too: -o model.vectors=300"),
        (["vocabulary.vectors=none.txt"], "none.txt: no such file"),
        (["vocabulary.extra=none.txt"], "vocabulary.extra is .*none.txt: no such file"),
        (["model.vectors=7"], "glove.txt: line 1: has 6 values, wanted a word and 7 numbers"),
        (
            ["vocabulary.without_vector=0.2"],
            r"vectors of 3 words \(.*'there'.*\) of the captions' 12",
        ),
        (["vocabulary.extra=FOLDER/strange.txt"], r"2 words \('yak', 'gnu'\) without a vector"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(
    settings: list[str], said: str, toy: tuple[Path, Path], tmp_path: Path
) -> None:
    cache, captions = toy
    (tmp_path / "strange.txt").write_text("yak\ndog\ngnu\n")
    settings = [setting.replace("FOLDER", str(tmp_path)) for setting in settings]
    with pytest.raises(USER_ERRORS, match=said):
        train(recipe(cache.parent, *settings), captions, cache, tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_extra_words_want_vectors(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="extra is 'words.txt' without vocabulary.vectors"):
        quick("vocabulary.extra=words.txt")
