"""CoreNLP's jars: found, told apart from others, cut."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from evaluate import corenlp
from evaluate.corenlp import (
    CODE,
    CUT_MODELS,
    MODEL_FILES,
    MODELS,
    check_corenlp,
    find_corenlp,
    install_corenlp,
)
from evaluate.errors import EvaluateError, NotAvailable

CLASSES = {"edu/stanford/A.class": b"a" * 1000, "edu/stanford/B.class": b"b"}
FILES = {name: f"model {name}".encode() * 50 for name in MODEL_FILES}


def jar(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("META-INF/MANIFEST.MF", "Built-By: anyone")
        for name, data in members.items():
            packed.writestr(name, data)
    return path


def digest(members: dict[str, bytes]) -> str:
    """The digest as documented: names, sizes and bytes by name."""
    found = hashlib.sha256()
    for name in sorted(members):
        found.update(name.encode() + b"\0" + str(len(members[name])).encode() + b"\0")
        found.update(members[name])
    return found.hexdigest()


@pytest.fixture()
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small release, which counts as the real one."""
    monkeypatch.setattr(corenlp, "_CODE_DIGEST", digest(CLASSES))
    monkeypatch.setattr(corenlp, "_MODELS_DIGEST", digest(FILES))
    monkeypatch.delenv("PIPELINE_CORENLP", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "release"
    folder.mkdir()
    jar(folder / CODE, CLASSES)
    jar(folder / MODELS, {**FILES, "edu/stanford/nlp/models/other/large.gz": b"x" * 100_000})
    return folder


def test_installs_code_and_the_models_that_are_read(release: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match=f"no {CODE} and no {MODELS} in .*data"):
        find_corenlp()
    installed = install_corenlp(find_corenlp(release))
    assert find_corenlp() == installed
    folder = tmp_path / "data" / "caption-pipeline" / "spice"
    assert sorted(p.name for p in folder.iterdir()) == sorted([CODE, CUT_MODELS])
    with zipfile.ZipFile(installed.models) as cut:
        assert {n: cut.read(n) for n in cut.namelist()} == FILES
    # The cut set can be installed elsewhere in turn.
    again = install_corenlp(installed, tmp_path / "again")
    check_corenlp(again)


def test_folder_by_variable(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_CORENLP", str(release))
    assert find_corenlp().models == release / MODELS


def test_other_contents_are_refused(release: Path, tmp_path: Path) -> None:
    jar(release / CODE, {**CLASSES, "edu/stanford/Evil.class": b"evil"})
    with pytest.raises(EvaluateError, match=f"{CODE}: its files have the digest .* wanted"):
        install_corenlp(find_corenlp(release))
    jar(release / CODE, CLASSES)
    jar(release / MODELS, {**FILES, MODEL_FILES[3]: b"another model"})
    with pytest.raises(EvaluateError, match=f"{MODELS}: its files have the digest"):
        install_corenlp(find_corenlp(release))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("damage", ["empty", "cut short", "one missing"])
def test_broken_jars_are_named(release: Path, damage: str) -> None:
    path = release / MODELS
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut short":
        path.write_bytes(path.read_bytes()[:-200])
    else:
        jar(path, {n: FILES[n] for n in MODEL_FILES[1:]})
    with pytest.raises(EvaluateError, match=f"{MODELS}: not CoreNLP 3.6.0 .*pipeline setup spice"):
        check_corenlp(find_corenlp(release))


def test_nothing_half_written_stays(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corenlp.os, "fsync", full)
    with pytest.raises(EvaluateError, match="No space left.*XDG_DATA_HOME"):
        install_corenlp(find_corenlp(release))
    assert list((tmp_path / "data" / "caption-pipeline" / "spice").iterdir()) == []


def test_a_full_disk_is_named_and_left_as_it_was(release: Path, full_disk: Path) -> None:
    folder = full_disk / "caption-pipeline" / "spice"
    with pytest.raises(EvaluateError, match=f"{folder}: cannot .*No space left.*XDG_DATA_HOME"):
        install_corenlp(find_corenlp(release))
    assert list(folder.iterdir()) == []
