"""`pipeline setup spice`: where it takes CoreNLP from, and what it says when it cannot."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from evaluate import corenlp
from evaluate.corenlp import CODE, CUT_MODELS, MODEL_FILES, MODELS
from evaluate.errors import EvaluateError
from pipeline.commands import setup
from pipeline.errors import PipelineError

IN_REPOSITORY = Path("edu/stanford/nlp/stanford-corenlp/3.6.0")


def trial(corenlp: Path) -> float:
    """SPICE's stand-in, which a release of empty jars does not run."""
    assert (corenlp / CODE).is_file() and (corenlp / CUT_MODELS).is_file()
    return 0.75


@pytest.fixture()
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small release; nothing else is there, and no Maven."""
    folder = tmp_path / "release"
    folder.mkdir()
    with zipfile.ZipFile(folder / CODE, "w") as jar:
        jar.writestr("A.class", b"code")
    with zipfile.ZipFile(folder / MODELS, "w") as jar:
        for name in MODEL_FILES:
            jar.writestr(name, b"model")
    monkeypatch.setattr(corenlp, "_CODE_DIGEST", corenlp._digest(folder / CODE, None))
    monkeypatch.setattr(
        corenlp, "_MODELS_DIGEST", corenlp._digest(folder / MODELS, list(MODEL_FILES))
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("PIPELINE_CORENLP", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    monkeypatch.setattr(setup, "try_spice", trial)
    return folder


def call(*arguments: str) -> Result:
    return CliRunner().invoke(setup.command, ["spice", *arguments], catch_exceptions=False)


def installed(tmp_path: Path) -> Path:
    return tmp_path / "data" / "caption-pipeline" / "spice"


def maven(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    program = folder / "mvn"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(setup.shutil, "which", lambda name: str(program))


def test_from_a_folder_and_then_from_its_own(release: Path, tmp_path: Path) -> None:
    done = call("--corenlp", str(release))
    assert done.exit_code == 0 and str(installed(tmp_path)) in done.stdout
    assert "SPICE runs: 0.750" in done.stdout
    assert sorted(p.name for p in installed(tmp_path).iterdir()) == sorted([CODE, CUT_MODELS])
    for path in release.iterdir():
        path.unlink()
    assert call().exit_code == 0  # there already: needs no source


def test_a_folder_without_the_jars_is_told_what_is_wanted(release: Path, tmp_path: Path) -> None:
    (release / CODE).unlink()
    wanted = rf"--corenlp: .*no {CODE} in .*; wanted a folder that holds {CODE} and {MODELS}"
    with pytest.raises(PipelineError, match=wanted) as caught:
        call("--corenlp", str(release))
    assert "to get it: pipeline setup spice" not in str(caught.value)


def test_a_broken_installation_is_replaced(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("--corenlp", str(release))
    (installed(tmp_path) / CUT_MODELS).write_bytes(b"half")
    with pytest.raises(PipelineError, match=r"Maven \(mvn\).*--corenlp DIR"):
        call()
    call("--corenlp", str(release))
    assert (installed(tmp_path) / CUT_MODELS).stat().st_size > 100


def test_from_mavens_own_folder(release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".m2" / "repository" / IN_REPOSITORY
    folder.parent.mkdir(parents=True)
    release.rename(folder)
    assert call().exit_code == 0 and (installed(tmp_path) / CODE).is_file()


def test_through_maven(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
    for argument in "$@"; do case "$argument" in
        -Dmaven.repo.local=*) to="${{argument#*=}}/{IN_REPOSITORY}";;
        -Dartifact=*:models) file={MODELS};;
        -Dartifact=edu.stanford.nlp:stanford-corenlp:3.6.0:jar) file={CODE};;
    esac; done
    mkdir -p "$to" && cp "{release}/$file" "$to"
    """
    maven(monkeypatch, tmp_path, script)
    assert call().exit_code == 0
    assert sorted(p.name for p in installed(tmp_path).iterdir()) == sorted([CODE, CUT_MODELS])


def test_mavens_last_lines(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven(monkeypatch, tmp_path, "echo '[ERROR] Could not transfer artifact'; exit 1")
    with pytest.raises(PipelineError, match=r"exit 1[\s\S]*not transfer[\s\S]*--corenlp DIR"):
        call()
    assert list(installed(tmp_path).iterdir()) == []


def test_no_room(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven(monkeypatch, tmp_path, "exit 1")
    monkeypatch.setattr(setup, "_ROOM_MB", 1 << 50)
    with pytest.raises(PipelineError, match="MB free, wanted"):
        call()


def test_spice_that_does_not_run_is_an_error(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(corenlp: Path) -> None:
        raise EvaluateError("SPICE failed: it ended with 1")

    monkeypatch.setattr(setup, "try_spice", fails)
    with pytest.raises(PipelineError, match="installed, but SPICE does not run: .*ended with 1"):
        call("--corenlp", str(release))
