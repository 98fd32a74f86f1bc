"""`pipeline doctor`: parts really tried, missing ones named with what to type, exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from evaluate.corenlp import find_corenlp
from evaluate.errors import NotAvailable
from extract.detector_presets import DETECTOR_PRESETS
from extract.detectron2_backend import Detectron2Detector
from extract.errors import ExtractError
from pipeline import doctor
from pipeline.commands.doctor import command
from pipeline.doctor import PARTS, Part, examine, works
from tests.conftest import ROOT


def broken() -> str:
    raise RuntimeError("libfoo.so: cannot open\nsecond line")


def absent() -> str:
    raise NotAvailable("no foo here", "install foo")


def unimportable() -> str:
    import no_such_module_as_this  # noqa: F401

    return "imported"


GOOD = Part("good", lambda: "1.0 runs")
BROKEN = Part("broken", broken, command="reinstall it")
ABSENT = Part("absent", absent, required=False)
UNIMPORTABLE = Part("unimportable", unimportable, required=False, command="pip install it")


def test_findings_say_what_to_type() -> None:
    good, bad, missing, module = examine((GOOD, BROKEN, ABSENT, UNIMPORTABLE))
    assert (good.status, good.detail, good.command) == ("ok", "1.0 runs", None)
    assert (bad.status, bad.command) == ("failed", "reinstall it")
    assert bad.detail.startswith("RuntimeError: libfoo.so")
    assert (missing.status, missing.detail, missing.command) == (
        *("missing", "no foo here"),
        "install foo",
    )
    assert module.status == "missing" and "no_such_module_as_this" in module.detail


@pytest.mark.parametrize(
    "parts, code, verdict",
    [
        ((GOOD,), 0, "works, with everything"),
        ((GOOD, ABSENT, UNIMPORTABLE), 0, "works; without: absent, unimportable"),
        ((GOOD, BROKEN, ABSENT), 1, "does not work without: broken"),
    ],
)
def test_exit_code_and_output(
    monkeypatch: pytest.MonkeyPatch, parts: tuple[Part, ...], code: int, verdict: str
) -> None:
    monkeypatch.setattr(doctor, "PARTS", parts)
    shown = CliRunner().invoke(command)
    assert shown.exit_code == code and shown.stdout.splitlines()[-1] == verdict
    if ABSENT in parts:
        assert "type: install foo" in shown.stdout
    told = CliRunner().invoke(command, ["--json"])
    answer = json.loads(told.stdout)
    assert told.exit_code == code and answer["works"] == (code == 0)
    assert [p["name"] for p in answer["parts"]] == [p.name for p in parts]


@pytest.mark.parametrize("part", [p for p in PARTS if p.required], ids=lambda p: p.name)
def test_what_the_tests_stand_on_works_here(part: Part) -> None:
    (finding,) = examine((part,))
    assert finding.status == "ok", finding


def test_java_and_meteor_run_here() -> None:
    findings = list(examine(tuple(p for p in PARTS if p.name in ("java", "meteor"))))
    assert [f.status for f in findings] == ["ok", "ok"], findings


@pytest.mark.slow
def test_spice_runs_here() -> None:
    try:
        find_corenlp()
    except NotAvailable as error:
        pytest.skip(str(error))
    findings = list(examine(tuple(p for p in PARTS if p.name in ("corenlp", "spice"))))
    assert [f.status for f in findings] == ["ok", "ok"], findings


def test_wrong_numbers_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    monkeypatch.setattr(torchvision.ops, "nms", lambda boxes, scores, limit: scores.argsort())
    (finding,) = examine(tuple(p for p in PARTS if p.name == "torchvision"))
    assert finding.status == "failed" and "nms kept boxes" in finding.detail
    assert not works([finding])


def test_missing_corenlp_and_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIPELINE_CORENLP", str(tmp_path))
    monkeypatch.setattr(doctor, "_LEAST_FREE_MB", 1 << 50)
    names = ("corenlp", "spice", "work folder")
    corenlp, spice, work = examine(tuple(p for p in PARTS if p.name in names))
    assert corenlp.status == spice.status == "missing"
    assert corenlp.command == spice.command == "pipeline setup spice"
    assert spice.detail == "waits for corenlp"
    assert work.status == "failed" and "MB free, wanted" in work.detail


def test_one_way_to_install_detectron2_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "detectron2", None)  # as where it is not installed
    (found,) = examine(tuple(part for part in PARTS if part.name == "detectron2"))
    command = found.command
    assert found.status == "missing" and command is not None
    assert command.startswith("pip install --no-build-isolation")
    with pytest.raises(ExtractError, match=re.escape(f"type {command}")):
        Detectron2Detector(DETECTOR_PRESETS["grid-r50"].built)
    assert f"`{command}`" in (ROOT / "docs" / "extract.md").read_text(encoding="utf-8")
