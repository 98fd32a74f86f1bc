"""`pipeline reproduce` in miniature: rows and seeds to a page, resumed, with a row that fails."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from evaluate.errors import NotAvailable
from evaluate.scores import Scores
from pipeline import comparison as comparisons
from pipeline import steps
from pipeline.cli import cli
from pipeline.comparison_page import mean_and_spread
from pipeline.errors import PipelineError, WrongUsage

IMAGES = 24
SMALL = [  # beside the tiny overlay
    *("model.encoder_layers=1", "model.decoder_layers=1", "xe.epochs=1", "xe.warmup=2"),
    *("scst.epochs=1", "scst.samples=2", "decoding.beam=2", "decoding.max_words=6"),
    *("xe.images=8", "scst.images=8"),
]
SPEC = {
    "title": "A small comparison",
    "about": "Two rows.",
    "seeds": [1, 2],
    "metrics": ["bleu", "cider"],
    "datasets": [
        {
            "name": "scenes",
            "title": "Scenes",
            "images": IMAGES,
            "recipe": "scenes",
            "overrides": SMALL,
            "features": [{"name": "rows", "preset": "imagenet-regions"}],
        },
        {
            "name": "photos",
            "title": "Photographs",
            "recipe": "flickr8k",
            "features": [{"name": "rows", "preset": "imagenet-grid"}],
        },
    ],
    "rows": [
        {"name": "Transformer", "folder": "transformer"},
        {
            "name": "NG-SAN",
            "folder": "ngsan",
            "overrides": ["model.name=normalized_geometry", "model.geometry_width=4"],
        },
    ],
}


def reproduce(*arguments: object) -> Result:
    words = ["reproduce", *(str(argument) for argument in arguments)]
    words += ["--device", "cpu", "--overlay", "tiny"]
    return CliRunner().invoke(cli, words, standalone_mode=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """The comparison's file, its folder, and the page after a first run."""
    folder = tmp_path_factory.mktemp("reproduce")
    spec, out = folder / "small.yaml", folder / "out"
    spec.write_text(yaml.safe_dump(SPEC))
    outcome = reproduce(spec, "--out", out)
    assert outcome.exception is None and outcome.return_value == 0, outcome.output
    return spec, out, (out / "small.md").read_text(encoding="utf-8")


def test_every_row_has_mean_spread_parameters_and_command_lines(small) -> None:
    _, out, page = small
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["Transformer", "NG-SAN"]
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert re.fullmatch(r"0\.\d\d", cells[1]) and cells[2] == "2"
        assert all(re.fullmatch(r"\d+\.\d ± \d+\.\d", cell) for cell in cells[3:])
    ciders = [
        Scores.from_json((out / "scenes/runs/ngsan" / seed / "scores/test.json").read_text())
        for seed in ("seed1", "seed2")
    ]
    assert mean_and_spread([s.corpus["CIDEr"] for s in ciders]) in lines[3]
    assert "have `seed=2` for it" in page and "## Photographs" not in page


def test_the_command_lines_make_these_very_runs(small) -> None:
    """Each is accepted by the program as the run that is there, with nothing left to do."""
    _, out, page = small
    lines = [line.strip() for line in page.splitlines() if line.startswith("    pipeline ")]
    assert [line.split()[1] for line in lines] == ["scenes", "extract", *["train", "eval"] * 2]
    for line in (line for line in lines if line.split()[1] == "train"):
        outcome = CliRunner().invoke(cli, shlex.split(line)[1:], standalone_mode=False)
        assert outcome.exception is None and "best validation" in outcome.output
    scenes = CliRunner().invoke(cli, shlex.split(lines[0])[1:], standalone_mode=False)
    assert "already there" in scenes.output


def test_a_second_call_does_no_work_and_a_lost_run_alone_is_made_again(
    small, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out, page = small
    trained = []
    train = steps.train

    def counted(recipe, captions, features, folder, device):
        trained.append(folder)
        return train(recipe, captions, features, folder, device)

    def never(*args: object, **options: object) -> None:
        raise AssertionError("work was done twice")

    monkeypatch.setattr(steps, "train", counted)
    monkeypatch.setattr(steps, "extract", never)
    lost = out / "scenes/runs/transformer/seed2"
    shutil.rmtree(lost)
    assert reproduce(spec, "--out", out).return_value == 0
    assert trained == [lost]
    assert (out / "small.md").read_text(encoding="utf-8") == page
    monkeypatch.setattr(steps, "decode_runs", never)
    chosen = reproduce(spec, "--out", out, "--row", "ngsan", "--seed", 2)
    assert chosen.return_value == 0 and len(trained) == 1
    assert "| NG-SAN |" in chosen.output and "| Transformer |" not in chosen.output
    assert "is not written: the command without --dataset, --row and --seed" in chosen.output
    assert (out / "small.md").read_text(encoding="utf-8") == page


def test_scores_are_made_anew_only_for_what_can_be_had_by_now(
    small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pipeline eval --metrics bleu`, and after `pipeline setup spice`."""
    _, out, _ = small
    run = out / "scenes/runs/transformer/seed1"
    path = run / "scores" / "test.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["intervals"] and whole["diversity"]
    less = {**whole, "corpus": {"Bleu_4": whole["corpus"]["Bleu_4"]}}
    path.write_text(json.dumps(less), encoding="utf-8")
    assert steps.make_scores(run, "cpu", ["bleu", "cider"]).corpus == whole["corpus"]
    decoded = []
    decode_runs = steps.decode_runs
    monkeypatch.setattr(
        steps, "decode_runs", lambda *a, **k: decoded.append(a) or decode_runs(*a, **k)
    )
    lacking = {**whole, "unavailable": {"SPICE": "no jars"}}
    for there in (False, True):
        path.write_text(json.dumps(lacking), encoding="utf-8")

        def find_corenlp(there: bool = there) -> None:
            if not there:
                raise NotAvailable("no jars", "pipeline setup spice")

        monkeypatch.setattr(steps, "find_corenlp", find_corenlp)
        monkeypatch.setattr(steps, "evaluate", partial(_without_spice, steps.evaluate))
        found = steps.make_scores(run, "cpu", ["bleu", "cider", "spice"])
        assert found.corpus == whole["corpus"]
        assert len(decoded) == int(there)


def _without_spice(evaluate, sources, references, settings, **options):
    """Scoring proper, but for the Java that this test does without."""
    settings = replace(settings, metrics=tuple(m for m in settings.metrics if m != "spice"))
    return evaluate(sources, references, settings, **options)


def test_a_row_that_fails_is_named_and_the_others_go_on(small, tmp_path: Path) -> None:
    spec, out, _ = small
    content = yaml.safe_load(spec.read_text())
    bad = {"name": "blind", "folder": "blind", "overrides": ["model.stream=grids"]}
    content["rows"].insert(0, bad)
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(content))
    outcome = reproduce(other, "--out", out, "--seed", 1)
    assert outcome.return_value == 1 and not (out / "other.md").exists()
    page = outcome.output
    assert "| blind | n/a | 0 |" in page
    assert "- blind, seed 1 failed: the model reads the stream 'grids', the cache has" in page
    assert re.search(r"\| NG-SAN \| 0\.\d\d \| 1 \| \d+\.\d \|", page)


def test_any_error_in_a_row_leaves_the_others_alone(small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a GPU that is out of memory, which is no error of this program's."""
    spec, out, _ = small
    make_run = comparisons.make_run

    def failing(recipe, overrides, *rest):
        if "model.name=normalized_geometry" in overrides:
            raise RuntimeError("out of memory")
        make_run(recipe, overrides, *rest)

    monkeypatch.setattr(comparisons, "make_run", failing)
    outcome = reproduce(spec, "--out", out, "--seed", 1)
    assert outcome.return_value == 1
    assert "- NG-SAN, seed 1 failed: out of memory" in outcome.output
    assert re.search(r"\| Transformer \| 0\.\d\d \| 1 \|", outcome.output)


def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(small) -> None:
    spec, out, _ = small
    outcome = reproduce(spec, "--out", out, "--row", "ngsan", "--seed", 1, "-o", "xe.epochs=2")
    assert outcome.return_value == 1
    assert "xe.epochs: 1 / 2" in outcome.output


def test_what_is_asked_for_must_be_there(small, tmp_path: Path) -> None:
    spec, out, _ = small
    for arguments, message in (
        (("--dataset", "scened"), "did you mean 'scenes'"),
        (("--row", "ng-san"), "did you mean 'ngsan'"),
        (("--dataset", "photos"), "needs --captions FILE and --photos FOLDER"),
    ):
        outcome = reproduce(spec, "--out", out, *arguments)
        assert isinstance(outcome.exception, WrongUsage), arguments
        assert message in str(outcome.exception)
    outcome = reproduce(spec, "--out", out, "--captions", spec, "--photos", tmp_path / "none")
    assert isinstance(outcome.exception, PipelineError) and "not there" in str(outcome.exception)
    with pytest.raises(WrongUsage, match="did you mean 'cheap'"):
        comparisons.load("chep")


@pytest.mark.parametrize("name", list(comparisons.shipped()))
def test_every_shipped_comparison_is_read_with_all_its_recipes(name: str) -> None:
    comparison = comparisons.load(name)
    folders = [row.folder for row in comparison.rows]
    assert len(set(folders)) == len(folders) and len(comparison.seeds) >= 3
