"""Checkpoints: a folder of weights, training state and facts, replaced whole.

`model.safetensors`, `training_state.pt` (tensors, numbers and strings only) and `meta.json`.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from caption.errors import CannotWrite, CaptionError


def save(folder: Path, model: nn.Module, meta: dict[str, Any], state: dict | None) -> None:
    """Write a checkpoint; a reader finds the old one or the new one, never a mixture.

    Raises CannotWrite when there is no room or no leave; the old one then still stands.
    """
    fresh, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    # Through memory and Python's own files: the libraries' hide why a file cannot be written
    # behind errors of their own, and safetensors' is for nobody else to read.
    try:
        with writing(folder):
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            (fresh / "model.safetensors").write_bytes(safetensors.save(tensors))
            if state is not None:
                torch.save(state, memory := io.BytesIO())
                (fresh / "training_state.pt").write_bytes(memory.getbuffer())
            (fresh / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
            _replace(folder, fresh, old)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # a half one would take up room


def _replace(folder: Path, fresh: Path, old: Path) -> None:
    for file in fresh.iterdir():
        _sync(file)
    _sync(fresh)
    if not folder.exists() and old.exists():  # a replacement was killed half way
        os.replace(old, folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(fresh, folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing at `path` into CannotWrite, which says why and what to do."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(
            f"{path}: cannot be written ({error.strerror or error}); make room or get leave to"
            " write there"
        ) from error


def find(folder: Path) -> Path | None:
    """Where the checkpoint is: in `folder`, beside it in the midst of a replacement, or None."""
    places = folder, folder.with_name(f"{folder.name}.old")
    return next((place for place in places if (place / "meta.json").exists()), None)


def load_model(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Fill the model and return the checkpoint's meta. Lists parameters that do not fit."""
    meta = load_meta(folder)
    path = folder / "model.safetensors"
    try:
        tensors = safetensors.load_file(path)
    except Exception as error:  # safetensors raises its own unexported kinds
        raise CaptionError(f"{path}: cannot be read as safetensors ({error})") from error
    fill(model, tensors, str(path))
    return meta


def fill(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load tensors by name; raise CaptionError listing what is missing, extra or misshapen."""
    own = model.state_dict()
    problems = [f"missing {name}" for name in own if name not in tensors]
    problems += [f"unexpected {name}" for name in tensors if name not in own]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, wanted {tuple(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    if problems:
        shown = "\n  ".join(problems[:20])
        raise CaptionError(f"{source} does not fit the model ({len(problems)}):\n  {shown}")
    model.load_state_dict(tensors)


def load_meta(folder: Path) -> dict[str, Any]:
    """The facts beside the weights. Raises CaptionError naming the file."""
    path = folder / "meta.json"
    try:
        meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaptionError(f"{path}: no readable checkpoint ({error})") from error
    return meta


def load_state(folder: Path) -> dict[str, Any]:
    """Optimizer, random states and counters. Raises CaptionError naming the file."""
    path = folder / "training_state.pt"
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds for a broken file
        raise CaptionError(f"{path}: no readable training state ({error})") from error
    return state


def load_last(run: Path, model: nn.Module) -> dict[str, Any]:
    """Fill the model with the state that training in `run` goes on from; returns the rest of it.

    Raises CaptionError naming the broken file and what can be done without it.
    """
    last = find(run / "last") or run / "last"
    try:
        load_model(last, model)
        return load_state(last)
    except CaptionError as error:
        best = ""
        if find(run / "best") is not None:
            best = f"pipeline eval --run {shlex.quote(str(run))} still scores best/, and "
        raise CaptionError(
            f"{error}\ntraining cannot go on from there: {best}pipeline train with another --out"
            " starts a new run"
        ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
