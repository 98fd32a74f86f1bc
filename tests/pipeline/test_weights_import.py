"""`pipeline weights import`: the Meshed-Memory release's files into a run that decodes."""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from caption.errors import CaptionError
from caption.importers import meshed_memory as release
from caption.models.meshed_memory import SLOTS, MeshedMemoryConfig
from caption.transformer import Transformer
from caption.vocabulary import SPECIALS
from pipeline.cli import cli
from pipeline.commands.caption import command as caption_command
from pipeline.commands.eval import command as eval_command
from pipeline.commands.weights import command
from pipeline.decoding import decode_split
from pipeline.errors import PipelineError
from pipeline.imports import import_m2
from pipeline.run_folder import open_run
from tests.caption.toy import COLOURS, NOUNS, WIDTH, write_toy

CPU = torch.device("cpu")
WORDS = [*SPECIALS, "a", *COLOURS, *NOUNS, "there", "is", "one", "here", " "]
CONFIG = MeshedMemoryConfig(
    width=16,
    heads=8,
    head_width=2,
    value_width=2,
    feed_forward=24,
    encoder_layers=3,
    decoder_layers=2,
    memory=4,
    max_words=20,
    positions="random",
    rows=50,
    attend_padding=True,
)


def small_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG, in_width=WIDTH, vocabulary=len(WORDS), slots=SLOTS).eval()


def checkpoint_of(model: Transformer, **changes: Any) -> dict[str, Any]:
    """As the release's training writes it."""
    own = model.state_dict()
    state = {official: own[name] for name, official in release.names(CONFIG).items()}
    state["decoder.running_seq"] = torch.zeros(1)
    state["decoder.layers.0.self_att.running_keys"] = torch.zeros(0, 16)
    return {
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.get_rng_state(),
        "numpy_rng_state": np.random.get_state(),
        "random_rng_state": random.getstate(),
        "epoch": 27,
        "val_loss": 2.5,
        "val_cider": np.float64(1.3),
        "state_dict": state,
        "optimizer": {"state": {}, "param_groups": [{"lr": 5e-6, "params": [0, 1]}]},
        "scheduler": {"last_epoch": 3, "lr_lambdas": [None]},
        "patience": 0,
        "best_cider": np.array(1.3),
        "use_rl": True,
        **changes,
    }


def write_vocabulary(path: Path, words: list[str]) -> None:
    """A pickle of the release's class, which need not exist where it is read."""
    module = ModuleType("data.vocab")

    class Vocab:
        pass

    def _default_unk_index() -> int:
        return 0

    for thing in (Vocab, _default_unk_index):
        thing.__module__, thing.__qualname__ = "data.vocab", thing.__name__
        setattr(module, thing.__name__, thing)
    vocabulary = Vocab()
    vocabulary.freqs = Counter(words)  # type: ignore[attr-defined]
    vocabulary.itos = words  # type: ignore[attr-defined]
    table: defaultdict[str, int] = defaultdict(_default_unk_index)
    table.update({word: number for number, word in enumerate(words)})
    vocabulary.stoi, vocabulary.vectors = table, None  # type: ignore[attr-defined]
    sys.modules["data"], sys.modules["data.vocab"] = ModuleType("data"), module
    try:
        path.write_bytes(pickle.dumps(vocabulary, protocol=3))
    finally:
        del sys.modules["data"], sys.modules["data.vocab"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    torch.save(checkpoint_of(small_model()), tmp_path / "m2.pth")
    write_vocabulary(tmp_path / "vocab.pkl", WORDS)
    return tmp_path / "m2.pth", tmp_path / "vocab.pkl"


def test_the_command_makes_a_run_that_decodes(files: tuple[Path, Path], tmp_path: Path) -> None:
    file, vocab = files
    run = tmp_path / "my run"
    done = CliRunner().invoke(
        command,
        ["import", "--from", "m2", str(file), "--vocab", str(vocab), "--out", str(run)],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    assert f"pipeline eval --run '{run}' --split test --features CACHE --captions" in done.output
    model, vocabulary = open_run(run).load(CPU)
    assert list(vocabulary.words) == WORDS
    wanted = small_model().state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())
    (run / "best").rename(run / "away")
    with pytest.raises(PipelineError, match=f"type pipeline train --out '{run}'"):
        open_run(run).load(CPU)
    (run / "away").rename(run / "best")
    cache, captions = write_toy(tmp_path)
    with pytest.raises(PipelineError, match="imported without features: give --features CACHE"):
        decode_split(run, "test")
    with pytest.raises(PipelineError, match="imported without captions: give --captions FILE"):
        decode_split(run, "test", features=cache)
    decoded = decode_split(run, "test", features=cache, captions=captions)
    found = json.loads(decoded.results.read_text())
    assert len(found) == len(decoded.references) and all("caption" in each for each in found)
    given = ["--features", str(cache), "--captions", str(captions)]
    for typed in (
        ["eval", "--run", str(run), "--split", "test", "--metrics", "cider", *given],
        ["report", str(run), "--explained", "0", *given],
    ):
        outcome = CliRunner().invoke(cli, typed, catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "CIDEr-D" in page and "by update" not in page  # it was trained elsewhere


def test_features_and_captions_can_be_told_at_once(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    cache, captions = write_toy(tmp_path)
    run = import_m2(*files, tmp_path / "run", features=cache, captions=captions)
    decoded = decode_split(run.path, "val")
    assert decoded.results.is_file() and open_run(run.path).fingerprint


def test_two_runs_decode_as_an_ensemble(files: tuple[Path, Path], tmp_path: Path) -> None:
    cache, captions = write_toy(tmp_path)
    runs = [import_m2(*files, tmp_path / n, features=cache, captions=captions) for n in "ab"]
    alone = decode_split(runs[0].path, "test")
    both = decode_split(runs[0].path, "test", others=[runs[1].path])
    assert both.results.name == "test+b.json"
    assert json.loads(both.results.read_text()) == json.loads(alone.results.read_text())
    vocabulary = runs[1].path / "vocab.json"
    vocabulary.write_text(json.dumps([*WORDS[:-1], "other"]))
    with pytest.raises(PipelineError, match="different vocabularies.*1 missing"):
        decode_split(runs[0].path, "test", others=[runs[1].path])


def test_the_format_before_torch_1_6_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save(checkpoint_of(small_model()), path, _use_new_zipfile_serialization=False)
    assert release.config_of(release.read_weights(path)) == CONFIG


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_pickles_that_ask_for_code_are_refused(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, vocab = files
    torch.save(checkpoint_of(small_model(), use_rl=Evil()), tmp_path / "evil.pth")
    with pytest.raises(CaptionError, match=r"evil.pth: refused, it asks for \w+.mkdir"):
        import_m2(tmp_path / "evil.pth", vocab, tmp_path / "run")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CaptionError, match=r"evil.pkl: refused, the pickle asks for \w+.mkdir"):
        import_m2(file, tmp_path / "evil.pkl", tmp_path / "run")
    assert not (tmp_path / "evil").exists() and not (tmp_path / "run").exists()


def test_what_is_no_checkpoint_is_told_in_our_words(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "res.json").write_text('[{"image_id": 1, "caption": "a dog"}]')
    with pytest.raises(CaptionError, match=r"res.json: no PyTorch checkpoint; wanted") as caught:
        import_m2(tmp_path / "res.json", files[1], tmp_path / "run")
    assert "weights_only" not in str(caught.value) and not (tmp_path / "run").exists()


def test_what_does_not_fit_is_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    file, vocab = files
    run = tmp_path / "run"
    write_vocabulary(tmp_path / "short.pkl", WORDS[:-1])
    with pytest.raises(PipelineError, match="with 17 words, the vocabulary has 16"):
        import_m2(file, tmp_path / "short.pkl", run)
    content = checkpoint_of(small_model())
    del content["state_dict"]["decoder.layers.1.fc_alpha2.bias"]
    content["state_dict"]["decoder.extra"] = torch.zeros(1)
    torch.save(content, tmp_path / "cut.pth")
    with pytest.raises(CaptionError) as error:
        import_m2(tmp_path / "cut.pth", vocab, run)
    assert "missing decoder.layers.1.fc_alpha2.bias" in str(error.value)
    assert "unexpected decoder.extra" in str(error.value)
    torch.save({"model": 1}, tmp_path / "other.pth")
    with pytest.raises(CaptionError, match="has no state_dict"):
        import_m2(tmp_path / "other.pth", vocab, run)
    (tmp_path / "text.pth").write_text("no checkpoint")
    with pytest.raises(CaptionError, match=r"text\.pth"):
        import_m2(tmp_path / "text.pth", vocab, run)
    assert not run.exists()
    run.mkdir()
    (run / "mine").touch()
    with pytest.raises(PipelineError, match="not empty"):
        import_m2(file, vocab, run)


def test_the_commands_take_ensembles(files: tuple[Path, Path], tmp_path: Path) -> None:
    cache, captions = write_toy(tmp_path)
    runs = [import_m2(*files, tmp_path / n, features=cache, captions=captions) for n in "ab"]
    two = [text for run in runs for text in ("--run", str(run.path))]
    options = ["--ensemble", "log_probabilities", "--metrics", "cider", "--resamples", "0"]
    scored = CliRunner().invoke(eval_command, [*two, *options, "--json"], catch_exceptions=False)
    assert scored.exit_code == 0 and "a+b" in scored.stdout
    assert (tmp_path / "a" / "scores" / "test+b.json").is_file()
    photo = tmp_path / "toy4.jpg"
    photo.touch()
    told = CliRunner().invoke(
        caption_command, [str(photo), *two, "--features", str(cache)], catch_exceptions=False
    )
    assert told.exit_code == 0 and "toy4.jpg\t" in told.output
