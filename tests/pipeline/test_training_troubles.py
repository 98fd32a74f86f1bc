"""What stands in the way of training and evaluation later on, and what is said of the way on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from caption import checkpoint
from caption.errors import CannotWrite
from extract.weights_convert import convert
from pipeline.cli import main
from pipeline.training import train
from tests.caption.toy import write_toy
from tests.mounts import mounted
from tests.pipeline.test_train import CPU, quick


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features, captions and a run."""
    folder = tmp_path_factory.mktemp("trained")
    cache, captions = write_toy(folder)
    train(quick("xe.epochs=1", "scst.epochs=0"), captions, cache, folder / "run", CPU)
    return folder


@pytest.fixture()
def copied(trained: Path, tmp_path: Path) -> Path:
    """The run, to be broken."""
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


@pytest.fixture()
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that its test fills; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, ["-t", "tmpfs", "-o", "size=4m", "tmpfs"]) as reason:
        if reason:
            pytest.skip(f"no small disk: {reason}")
        yield disk


def fill(disk: Path, leave: int) -> Path:
    """Take all but so many bytes of a disk; returns what takes them."""
    filling = disk / "filling"
    there = os.statvfs(disk)
    filling.write_bytes(bytes(there.f_bavail * there.f_frsize - leave))
    return filling


@pytest.mark.parametrize("leave", [0, 1 << 15, 1 << 17])
def test_a_full_disk_is_one_error_and_training_goes_on(
    trained, small_disk, capsys, leave, monkeypatch
) -> None:
    """Full at the first byte of the log, at the weights or at the training state."""
    out = small_disk / "run"
    recipe = quick("xe.epochs=1", "scst.epochs=0")
    train(recipe, trained / "captions.json", trained / "features", out, CPU)
    state = out / "last" / "training_state.pt"
    weights = (out / "last" / "model.safetensors").stat().st_size
    assert 1 << 15 < weights < 1 << 17 < weights + state.stat().st_size
    position = checkpoint.load_state(out / "last")
    position["position"].update(stage="xe", epoch=0, step=0, metrics_bytes=0)
    torch.save(position, state)  # as if it had ended before the first update
    shutil.rmtree(out / "best")
    before = state.read_bytes()
    filling = fill(small_disk, leave)
    monkeypatch.chdir(small_disk)
    assert run("train", "--out", "run", "--device", "cpu") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: run/") and "cannot be written (No space left on device)" in said
    assert "make room or get leave to write there, then pipeline train --out run goes on" in said
    assert "the state in run/last is whole" in said
    assert state.read_bytes() == before and not list(out.glob("*.new"))
    filling.unlink()
    assert run("train", "--out", "run", "--device", "cpu") == 0


@pytest.mark.parametrize("state", [None, {"numbers": torch.zeros(1 << 21)}])
def test_a_checkpoint_that_does_not_fit_leaves_the_old_one(small_disk, state) -> None:
    model, large = torch.nn.Linear(1, 1), torch.nn.Linear(1 << 20, 2)
    checkpoint.save(small_disk / "last", model, {"epoch": 1}, None)
    with pytest.raises(CannotWrite, match="last: cannot be written .No space left on device"):
        checkpoint.save(small_disk / "last", model if state else large, {"epoch": 2}, state)
    assert [path.name for path in small_disk.iterdir()] == ["last"]
    assert checkpoint.load_model(small_disk / "last", model) == {"epoch": 1}


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_weights_are_for_those_to_read_whom_the_umask_lets(tmp_path, mask) -> None:
    before = os.umask(mask)
    try:
        checkpoint.save(tmp_path / "best", torch.nn.Linear(1, 1), {}, {"numbers": torch.zeros(1)})
        torch.save({"a": torch.zeros(2)}, tmp_path / "w.pth")
        convert(tmp_path / "w.pth", tmp_path / "w.safetensors")
    finally:
        os.umask(before)
    files = [*(tmp_path / "best").iterdir(), *tmp_path.glob("w.*")]
    assert len(files) == 6
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


@pytest.mark.parametrize("broken", ["training_state.pt", "model.safetensors"])
def test_without_a_state_the_best_is_still_there(copied, broken, capsys) -> None:
    (copied / "last" / broken).write_bytes(b"cut")
    assert run("train", "--out", copied, "--device", "cpu") == 1
    said = capsys.readouterr().err
    assert f"{copied}/last/{broken}: " in said and "Traceback" not in said
    assert f"pipeline eval --run {copied} still scores best/" in said
    assert "pipeline train with another --out starts a new run" in said
    shutil.rmtree(copied / "best")
    assert run("train", "--out", copied, "--device", "cpu") == 1
    said = capsys.readouterr().err
    assert "pipeline eval" not in said and "another --out" in said


@pytest.mark.parametrize("name", ["config.yaml", "vocab.json"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_a_cut_file_of_a_run_can_be_put_back(copied, name, part, capsys) -> None:
    data = (copied / name).read_bytes()
    (copied / name).write_bytes(data[: int(part * len(data))])
    for command in (("eval", "--run", copied), ("train", "--out", copied, "--device", "cpu")):
        assert run(*command) == 1
        said = capsys.readouterr().err
        assert f"{copied / name}: " in said and "Traceback" not in said
        assert "put back a copy of the file" in said and "another --out" in said
        assert ("a run on the same captions with the same settings" in said) == (name[0] == "v")


def test_features_and_captions_that_moved_are_asked_for(trained, tmp_path, capsys) -> None:
    cache, captions = write_toy(tmp_path)
    train(quick("xe.epochs=1", "scst.epochs=0"), captions, cache, tmp_path / "run", CPU)
    cache, captions = cache.rename(tmp_path / "c"), captions.rename(tmp_path / "k.json")
    typed = ("eval", "--run", tmp_path / "run", "--device", "cpu", "--metrics", "bleu")
    assert run(*typed) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'run'} was trained on the captions {tmp_path / 'captions.json'}" in said
    assert "not there any more; if they were moved, give --captions FILE" in said
    typed = (*typed, "--captions", captions)
    assert run(*typed) == 1
    said = capsys.readouterr().err
    assert f"was trained on the features {tmp_path / 'features'}" in said
    assert "not there any more; if they were moved, give --features PATH" in said
    assert run(*typed, "--features", cache) == 0
    typed = ("train", "--out", tmp_path / "run", "--device", "cpu")
    assert run(*typed) == 2
    assert "features: not there; if it was moved, give its new place" in capsys.readouterr().err
    assert run(*typed, "--features", cache, "--captions", captions) == 0
    assert run(*typed) == 0, "the new places are kept"
    assert run("eval", "--run", tmp_path / "run", "--metrics", "bleu") == 0
    other, _ = write_toy(tmp_path / "other", images=30)
    assert run(*typed, "--features", other) == 1, "what is still there was not moved"
