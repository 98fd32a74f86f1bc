"""`pipeline caption` on a detector's features: weights, exit codes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extract.cache import fingerprint_of
from extract.extractors import make_extractor
from extract.run import Failure
from extract.sources import Source
from pipeline.cli import main
from pipeline.decoding import Captions
from pipeline.errors import PipelineError
from pipeline.own_photos import Outcome, extractor_of
from tests.extract.detector_toy import small, write_weights

NAME = "bua-d2-r101"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """What `extractor_of` looks at of a run that was trained on a small detector's regions."""
    preset = small(NAME)
    weights = write_weights(preset, tmp_path / "first.safetensors")
    made = make_extractor(NAME, preset, "cpu", weights=weights)
    return SimpleNamespace(path=tmp_path / "run", fingerprint=fingerprint_of(made.meta))


def test_the_run_s_weights_are_taken_under_any_name(run: Any, tmp_path: Path) -> None:
    (tmp_path / "first.safetensors").rename(tmp_path / "moved.safetensors")
    made = extractor_of(run, ["regions"], None, "cpu", tmp_path / "moved.safetensors")
    assert made.preset == small(NAME)


def test_other_weights_are_refused(run: Any, tmp_path: Path) -> None:
    other = write_weights(small(NAME), tmp_path / "other.safetensors", seed=1)
    with pytest.raises(PipelineError, match="weights.sha256: .*\n.*--weights"):
        extractor_of(run, ["regions"], None, "cpu", other)


@pytest.mark.parametrize(("captions", "code"), [({"a": ["a dog"]}, 3), ({}, 1)])
def test_exit_codes(
    captions: dict[str, list[str]], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 where some photos failed, 1 where nothing came out, as `pipeline extract` has it."""
    photo = tmp_path / "b.jpg"
    photo.write_bytes(b"")
    outcome = Outcome(
        found=Captions(captions=captions, scores={image: [-1.0] for image in captions}),
        files={"a": tmp_path / "a.jpg"},
        failures=[Failure(Source("b", photo), "empty-file", "0 bytes")],
    )
    given: dict[str, Any] = {}

    def caption_photos(*inputs: Any, **options: Any) -> Outcome:
        given.update(options)
        return outcome

    monkeypatch.setattr("pipeline.commands.caption.caption_photos", caption_photos)
    args = ["caption", str(photo), "--run", str(tmp_path), "--weights", str(photo)]
    args += ["--id", "relative-path"]
    more = ["--features", str(tmp_path), "--boxes", str(photo)]
    wrong = (
        [*args, *more[:2]],
        [*args[:4], *more],
        [*args, "--id", "path"],
        [*args, "--ensemble", "probabilities"],
    )
    for words, wanted in ((args, code), *((words, 2) for words in wrong)):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert (caught.value.code or 0) == wanted
    assert given["weights"] == photo and given["relative_ids"]
