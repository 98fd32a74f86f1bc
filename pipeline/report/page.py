"""The page itself: what is gathered for it, and the template filled."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from caption.data import read_captions
from evaluate.errors import EvaluateError
from evaluate.scores import COLUMNS, Scores
from extract.cache import flat
from extract.counts import counted
from pipeline.entries import read_json
from pipeline.errors import PipelineError
from pipeline.files import write_text
from pipeline.report.curves import charts, read_metrics
from pipeline.report.explained import explained
from pipeline.report.pictures import frame, gather
from pipeline.report.words import length_bars, tokenized, word_facts
from pipeline.results import canonical_id, places_in, read_results
from pipeline.run_folder import RunFolder, open_run
from pipeline.tables import percent

NAMES = dict(
    zip(
        COLUMNS,
        ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D", "SPICE"),
        strict=True,
    )
)
SHUFFLED = "-shuffled"  # how `pipeline eval --shuffle-features` ends a split's name


@dataclass(frozen=True, kw_only=True)
class Row:
    """The scores of one split."""

    split: str
    cells: list[tuple[str, str, str]]  # metric, value, half of its 95 % interval or ""


def write_report(
    run: Path,
    images: Path | None = None,
    explain: int = 0,
    *,
    features: Path | None = None,
    captions: Path | None = None,
) -> Path:
    """Write RUN/report.html. `images` is a folder to find the photographs in, by file name.

    `explain` is how many captions are explained word by word. `features` and `captions` stand in
    for the run's own; imported runs have none.

    Raises PipelineError when nothing of the run was evaluated yet.
    """
    folder = open_run(run)
    splits = sorted(path.stem for path in (run / "scores").glob("*.json"))
    if not splits:
        raise PipelineError(
            f"{run}: no scores yet; type pipeline eval --run {shlex.quote(str(run))} --split test,"
            " then again"
        )
    split = "test" if "test" in splits else splits[0]
    scores = {name: _scores(folder, name) for name in splits}
    cache, data = folder.cache(features), read_captions(folder.caption_file(captions))
    found = read_results(folder.results(split), allow_empty=True).captions
    references = {canonical_id(image.image_id): image.captions for image in data.images}
    cider = _per_image(scores[split], "CIDEr")
    places = places_in(cache, data.images)
    groups = gather(found, references, cider, cache, places, images)
    own, theirs = tokenized(found, references)
    metrics = read_metrics(folder.metrics)
    page = _template().render(
        run=run.resolve().name,
        facts=_facts(folder, split, len(found)),
        charts=[(title, Markup(svg)) for title, svg in charts(metrics)],
        self_critical=any(line["stage"] == "scst" for line in metrics),
        headings=list(NAMES.values()),
        rows=[_row(folder, name, one) for name, one in scores.items()],
        shuffled=any(name.endswith(SHUFFLED) for name in splits),
        unavailable={NAMES.get(c, c): why for c, why in scores[split].unavailable.items()},
        manners=_manners(folder, splits),
        warnings=scores[split].warnings,
        signature=scores[split].signature,
        split=split,
        groups=groups,
        ranked=bool(cider),
        explained=explained(folder, cache, groups, places, images, explain),
        frame=f"{frame(groups):.3f}",
        words=word_facts(own, theirs, len(folder.vocabulary())),
        lengths=length_bars(own, theirs),
        settings=_settings(folder),
        version=version("caption-pipeline"),
    )
    path = run / "report.html"
    write_text(path, page)
    return path


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("pipeline.report"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def _scores(folder: RunFolder, name: str) -> Scores:
    path = folder.scores(name)
    try:
        return Scores.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, EvaluateError) as error:
        raise PipelineError(f"{path}: {error}") from error


def _per_image(scores: Scores, column: str) -> dict[str, float]:
    """Image id -> value; empty where the metric was not computed."""
    values = scores.per_image.get(column)
    return dict(zip(map(str, scores.ids), values, strict=True)) if values else {}


def _row(folder: RunFolder, name: str, scores: Scores) -> Row:
    intervals: Mapping[str, Mapping[str, float]] = read_json(folder.scores(name)).get(
        "intervals", {}
    )
    shown = name.removesuffix(SHUFFLED) + ", images shuffled" * name.endswith(SHUFFLED)
    cells = [
        (NAMES[c], percent(scores.corpus.get(c)), _half_width(intervals.get(c))) for c in COLUMNS
    ]
    return Row(split=shown, cells=cells)


def _manners(folder: RunFolder, splits: Sequence[str]) -> dict[str, str]:
    """Split -> what of its decoding was not the run's own."""
    kept = {name: read_json(folder.scores(name)).get("decoding") or {} for name in splits}
    return {
        name: "; ".join(how["unlike_run"]) for name, how in kept.items() if how.get("unlike_run")
    }


def _half_width(interval: Mapping[str, float] | None) -> str:
    return f"±{50 * (interval['high'] - interval['low']):.1f}" if interval else ""


def _facts(folder: RunFolder, split: str, images: int) -> Sequence[str]:
    recipe = folder.recipe
    return (
        f"captioner {recipe.model_name()}",
        f"recipe {recipe.name}",
        f"features {folder.fingerprint.get('preset', 'of no preset')}",
        f"seed {recipe.seed}",
        f"{counted(images, 'image')} of the split {split}",
    )


def _settings(folder: RunFolder) -> list[tuple[str, str]]:
    settings = {"recipe": folder.settings()["recipe"], "features": folder.fingerprint}
    return [(key, str(value)) for key, value in flat(settings).items()]
