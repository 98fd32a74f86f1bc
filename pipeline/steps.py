"""The steps of a command that goes the whole way; each is left out where its outcome is there."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from caption import checkpoint
from evaluate.corenlp import find_corenlp
from evaluate.errors import NotAvailable
from evaluate.java import find_java
from evaluate.scores import METRIC_COLUMNS, METRICS, Scores
from extract import presets
from extract.boxes import read_boxes
from extract.cache import FeatureCache
from extract.extractors import make_extractor
from extract.run import extract
from extract.sources import find_sources
from pipeline import recipe as recipes
from pipeline.devices import choose_device
from pipeline.errors import PipelineError
from pipeline.kept_scores import write_scores
from pipeline.progress import Progress
from pipeline.run_folder import open_run
from pipeline.run_results import Decoding, decode_runs
from pipeline.scenes.world import World
from pipeline.scenes.write import write_scenes
from pipeline.scoring import Settings, evaluate
from pipeline.training import is_finished, train

log = logging.getLogger(__name__)


def scenes_line(out: Path, images: int, seed: int, size: int) -> str:
    """The command line of `make_scenes`."""
    return f"pipeline scenes --out {_quoted(out)} --images {images} --seed {seed} --size {size}"


def extract_line(photos: Path, preset: str, boxes: Path | None, out: Path) -> str:
    """The command line of `make_features`."""
    given = "" if boxes is None else f" --boxes {_quoted(boxes)}"
    return f"pipeline extract {_quoted(photos)} --preset {preset}{given} --out {_quoted(out)}"


def train_line(
    recipe: str,
    overrides: Sequence[str],
    features: Path,
    captions: Path,
    out: Path,
    overlay: str | None = None,
) -> str:
    """The command line of `make_run`."""
    over = "" if overlay is None else f" --overlay {shlex.quote(overlay)}"
    shown = "".join(f" -o {shlex.quote(setting)}" for setting in overrides)
    return (
        f"pipeline train --recipe {recipe}{over}{shown} --features {_quoted(features)}"
        f" --captions {_quoted(captions)} --out {_quoted(out)}"
    )


def eval_line(run: Path, shuffle: bool = False) -> str:
    """The command line of `make_scores`."""
    return f"pipeline eval --run {_quoted(run)} --split test{' --shuffle-features' * shuffle}"


def make_scenes(out: Path, images: int, seed: int, size: int) -> None:
    """Scenes of the default world."""
    log.info("$ %s", scenes_line(out, images, seed, size))
    with Progress(images, unit="images", label="scenes") as progress:
        write_scenes(out, images, seed, size, World(), on_done=progress.update)


def make_features(photos: Path, preset: str, boxes: Path | None, out: Path, device: str) -> None:
    """A feature cache of all photographs in a folder. Raises PipelineError where one fails."""
    log.info("$ %s", extract_line(photos, preset, boxes, out))
    sources = find_sources([photos])
    if (out / "cache.json").exists():
        cache = FeatureCache(out)
        if all(source.image_id in cache for source in sources):
            return
    given = None if boxes is None else read_boxes(boxes)
    extractor = make_extractor(preset, presets.get(preset), str(choose_device(device)), given)
    with Progress(len(sources), unit="images", label="extract") as progress:
        summary = extract(sources, extractor, out, on_done=progress.update)
    if summary.failures:
        first = summary.failures[0]
        raise PipelineError(f"{first.source.path}: {first.reason}: {first.detail}")


def make_run(
    recipe: str,
    overrides: Sequence[str],
    features: Path,
    captions: Path,
    out: Path,
    device: str,
    overlay: str | None = None,
) -> None:
    """A trained captioner; one that was interrupted goes on.

    Raises PipelineError where `out` holds a run with other settings.
    """
    log.info("$ %s", train_line(recipe, overrides, features, captions, out, overlay))
    wanted = recipes.load(recipe, overrides, overlay)
    if not is_finished(out):
        train(wanted, captions, features, out, choose_device(device))
        return
    lines = recipes.setting_differences(open_run(out).recipe.resolved(), wanted.resolved())
    if lines:
        shown = "\n  ".join(lines)
        raise PipelineError(
            f"{out} holds a finished run with other settings (there / asked for):\n  {shown}\n"
            "give another --out, or the settings of the first time"
        )


def make_scores(
    run: Path, device: str, metrics: Sequence[str] = METRICS, shuffle: bool = False
) -> Scores:
    """The test scores of a run, from `scores/` where they are whole and newer than the checkpoint.

    They are whole with every metric that can be had on this machine.
    """
    path = run / "scores" / f"test{'-shuffled' * shuffle}.json"
    best = checkpoint.find(run / "best")
    log.info("$ %s", eval_line(run, shuffle))
    if best and path.exists() and path.stat().st_mtime > (best / "meta.json").stat().st_mtime:
        scores = Scores.from_json(path.read_text(encoding="utf-8"))
        if _whole(scores, metrics):
            return scores
    decoded = decode_runs([run], Decoding(split="test", shuffle=shuffle, device=device))
    evaluation = evaluate(
        decoded.sources,
        decoded.references,
        Settings(metrics=tuple(metrics)),
        references_path=decoded.references_path,
    )
    (scored,) = evaluation.scored
    write_scores(path, scored)
    return scored.scores


def _whole(scores: Scores, metrics: Sequence[str]) -> bool:
    wanted = {column for metric in metrics for column in METRIC_COLUMNS[metric]}
    return all(
        column in scores.corpus or (column in scores.unavailable and not _can_be_had(column))
        for column in wanted
    )


def _can_be_had(column: str) -> bool:
    """Whether the outside program of METEOR or SPICE is there by now."""
    try:
        find_java()
        if column == "SPICE":
            find_corenlp()
    except NotAvailable:
        return False
    return True


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
