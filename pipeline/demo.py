"""The demo: scenes, features, a Transformer and a language-only one, scores, table, report."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from evaluate.scores import Scores, score
from extract import presets
from extract.boxes import read_boxes
from extract.cache import FeatureCache
from extract.extractors import make_extractor
from extract.run import extract
from extract.sources import find_sources
from pipeline import recipe as recipes
from pipeline.decoding import decode_split
from pipeline.errors import PipelineError
from pipeline.files import write_text
from pipeline.progress import Progress
from pipeline.report import write_report
from pipeline.results import read_results
from pipeline.run_folder import choose_device
from pipeline.scenes.world import World
from pipeline.scenes.write import BOXES, DATASET, IMAGES, write_scenes
from pipeline.tables import render, score_table
from pipeline.training import is_finished, train

log = logging.getLogger(__name__)

PRESET = "imagenet-regions"
RECIPE = "scenes"
SEED, SIZE = 1, 224  # of the scenes
METRICS = ("bleu", "meteor", "rouge", "cider", "spice")
ROWS = {
    "Transformer": ("transformer", False),
    "Transformer, images shuffled": ("transformer", True),
    "language only": ("language-only", False),
}


def run_demo(
    out: Path, images: int, device: str, overrides: Sequence[str] = ()
) -> tuple[str, Path]:
    """Everything in `out`; returns the table and the report's path. Finished steps are kept."""
    scenes, features = out / "scenes", out / "features"
    _say(f"pipeline scenes --out {shlex.quote(str(scenes))} --images {images}")
    with Progress(images, unit="images", label="scenes") as progress:
        write_scenes(scenes, images, SEED, SIZE, World(), on_done=progress.update)
    _extract(scenes, features, device)
    captions = scenes / DATASET
    for name, blind in (("transformer", False), ("language-only", True)):
        settings = [*overrides, *(["data.shuffle_features=true"] if blind else [])]
        recipe = recipes.load(RECIPE, settings)
        shown = "".join(f" -o {setting}" for setting in settings)
        _say(
            f"pipeline train --recipe {RECIPE}{shown} --features {features}"
            f" --captions {captions} --out {out / name}"
        )
        if not is_finished(out / name):
            train(recipe, captions, features, out / name, choose_device(device))
    scored = {row: _score(out / run, shuffle, device) for row, (run, shuffle) in ROWS.items()}
    table = render(score_table(scored))
    unavailable = next(iter(scored.values())).unavailable
    notes = [f"{metric}: not available: {why}" for metric, why in unavailable.items()]
    text = "\n".join([table, *notes])
    write_text(out / "table.txt", text + "\n")
    return text, write_report(out / "transformer")


def _extract(scenes: Path, features: Path, device: str) -> None:
    _say(
        f"pipeline extract {scenes / IMAGES} --preset {PRESET} --boxes {scenes / BOXES}"
        f" --out {features}"
    )
    sources = find_sources([scenes / IMAGES])
    if (features / "cache.json").exists():
        cache = FeatureCache(features)
        if all(source.image_id in cache for source in sources):
            return
    boxes = read_boxes(scenes / BOXES)
    extractor = make_extractor(PRESET, presets.get(PRESET), str(choose_device(device)), boxes)
    with Progress(len(sources), unit="images", label="extract") as progress:
        summary = extract(sources, extractor, features, on_done=progress.update)
    if summary.failures:
        first = summary.failures[0]
        raise PipelineError(f"{first.source.path}: {first.reason}: {first.detail}")


def _score(run: Path, shuffle: bool, device: str) -> Scores:
    """The test scores of a run, from `scores/` where they are newer than the checkpoint."""
    name = "test-shuffled" if shuffle else "test"
    path, best = run / "scores" / f"{name}.json", run / "best" / "meta.json"
    _say(f"pipeline eval --run {run} --split test{' --shuffle-features' if shuffle else ''}")
    if path.exists() and path.stat().st_mtime > best.stat().st_mtime:
        return Scores.from_json(path.read_text(encoding="utf-8"))
    decoded = decode_split(run, "test", shuffle=shuffle, device=device)
    results = read_results(decoded.results, allow_empty=True).captions
    scores = score(results, decoded.references, metrics=METRICS)
    write_text(path, scores.to_json())
    return scores


def _say(command: str) -> None:
    log.info("$ %s", command)
