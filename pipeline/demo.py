"""The demo: scenes, features, a Transformer and a language-only one, scores, table, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluate.scores import METRICS
from pipeline import recipe as recipes
from pipeline.devices import choose_device
from pipeline.errors import PipelineError
from pipeline.files import write_text
from pipeline.report import write_report
from pipeline.scenes.write import BOXES, DATASET, IMAGES
from pipeline.steps import make_features, make_run, make_scenes, make_scores
from pipeline.tables import render, score_table

PRESET = "imagenet-regions"
RECIPE = "scenes"
SEED, SIZE = 1, 224  # of the scenes
ROWS = {
    "Transformer": ("transformer", False),
    "Transformer, images shuffled": ("transformer", True),
    "language only": ("language-only", False),
}


def run_demo(
    out: Path, images: int, device: str, overrides: Sequence[str] = ()
) -> tuple[str, Path]:
    """Everything in `out`; returns the table and the report's path. Finished steps are kept."""
    _check_folder(out)
    recipes.load(RECIPE, overrides)  # what is misspelt is said before anything is written
    choose_device(device)
    scenes, features = out / "scenes", out / "features"
    make_scenes(scenes, images, SEED, SIZE)
    make_features(scenes / IMAGES, PRESET, scenes / BOXES, features, device)
    for name, blind in (("transformer", False), ("language-only", True)):
        settings = [*overrides, *(["data.shuffle_features=true"] if blind else [])]
        make_run(RECIPE, settings, features, scenes / DATASET, out / name, device)
    scored = {
        row: make_scores(out / run, device, METRICS, shuffle)
        for row, (run, shuffle) in ROWS.items()
    }
    table = render(score_table(scored))
    unavailable = next(iter(scored.values())).unavailable
    notes = [f"{metric}: not available: {why}" for metric, why in unavailable.items()]
    text = "\n".join([table, *notes])
    write_text(out / "table.txt", text + "\n")
    return text, write_report(out / "transformer")


def _check_folder(out: Path) -> None:
    """Refuse a folder of other things; a demo that was begun has its scenes."""
    if not out.is_dir() or (out / "scenes").is_dir():
        return
    found = sorted(path.name for path in out.iterdir())
    if found:
        raise PipelineError(
            f"{out} is no demo but holds {', '.join(found[:5])}; give an empty or new folder as"
            " --out"
        )
