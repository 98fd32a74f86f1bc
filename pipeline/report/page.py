"""The page itself: what is gathered for it, and the template filled."""

from __future__ import annotations

import base64
import io
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup
from PIL import Image

from caption.data import read_captions
from evaluate.scores import Scores
from extract.cache import FeatureCache, flat
from extract.errors import ExtractError
from extract.images import ImageLimits, ImageRules, read_image
from pipeline.errors import PipelineError
from pipeline.files import write_text
from pipeline.report.curves import charts, read_metrics
from pipeline.results import read_results
from pipeline.run_folder import RunFolder, open_run
from pipeline.tables import COLUMNS, HEADINGS, percent

log = logging.getLogger(__name__)

SHOWN = 8  # pictures of each kind: best, worst, and in between
THUMBNAIL = 320  # longer side in pixels


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of the report."""

    image_id: str
    caption: str
    references: list[str]
    cider: float | None
    picture: str | None  # as a data URL; None where the file is not there any more


def write_report(run: Path, images: Path | None = None) -> Path:
    """Write RUN/report.html. `images` is a folder to find the photographs in, by file name.

    Raises PipelineError when nothing of the run was evaluated yet.
    """
    folder = open_run(run)
    names = sorted(path.stem for path in (run / "scores").glob("*.json"))
    if not names:
        raise PipelineError(
            f"{run}: no scores yet; type pipeline eval --run {run} --split test, then again"
        )
    scores = {name: _scores(folder, name) for name in names}
    main = "test" if "test" in names else names[0]
    captions = read_results(folder.results(main), allow_empty=True).captions
    groups = _groups(folder, scores[main], captions, images)
    page = _template().render(
        run=run.resolve().name,
        recipe=folder.recipe,
        model=folder.recipe.model_name(),
        charts=[(title, Markup(svg)) for title, svg in charts(read_metrics(folder.metrics))],
        headings=[HEADINGS[c] for c in COLUMNS],
        rows={n: [percent(s.corpus.get(c)) for c in COLUMNS] for n, s in scores.items()},
        unavailable=scores[main].unavailable,
        signature=scores[main].signature,
        split=main,
        groups=groups,
        facts=_facts(captions),
        lengths=_lengths(captions),
        settings=_settings(folder),
    )
    missing = sum(p.picture is None for pictures in groups.values() for p in pictures)
    if missing:
        log.warning("%d pictures were not found where they were extracted: --images DIR", missing)
    path = run / "report.html"
    write_text(path, page)
    return path


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("pipeline.report"), autoescape=select_autoescape(default=True)
    )
    return environment.get_template("report.html")


def _scores(folder: RunFolder, name: str) -> Scores:
    return Scores.from_json(folder.scores(name).read_text(encoding="utf-8"))


def _groups(
    folder: RunFolder, scores: Scores, captions: Mapping[str, str], images: Path | None
) -> dict[str, list[Picture]]:
    """Pictures best and worst by CIDEr-D and evenly from between; all alike without CIDEr-D."""
    data = read_captions(folder.captions)
    references = {image.image_id: image.captions for image in data.images}
    files = _files(folder, images)
    values = scores.per_image.get("CIDEr")
    by_id = dict(zip(map(str, scores.ids), values, strict=True)) if values else {}
    order = sorted(captions, key=lambda image: -by_id.get(image, 0.0))
    middle = order[SHOWN : len(order) - SHOWN]
    step = max(1, len(middle) // SHOWN)
    chosen = {
        "Best by CIDEr-D": order[:SHOWN],
        "Between": middle[::step][:SHOWN],
        "Worst by CIDEr-D": order[SHOWN:][-SHOWN:][::-1],
    }
    return {
        title: [
            Picture(
                image_id=image,
                caption=captions[image],
                references=references.get(image, []),
                cider=by_id.get(image),
                picture=_thumbnail(files.get(image)),
            )
            for image in ids
        ]
        for title, ids in chosen.items()
        if ids
    }


def _files(folder: RunFolder, images: Path | None) -> dict[str, Path]:
    """Where the photographs are: as the cache has it, or below `images`."""
    cache = FeatureCache(folder.features)
    found = {}
    for image in cache.ids:
        file = Path(cache.read(image, []).file)
        found[image] = images / file.name if images is not None else file
    return found


def _thumbnail(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        pixels = read_image(path, ImageRules(), ImageLimits()).pixels
    except ExtractError:
        return None
    picture = Image.fromarray(pixels)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _facts(captions: Mapping[str, str]) -> list[tuple[str, str]]:
    texts = list(captions.values())
    words = Counter(word for text in texts for word in text.split())
    common, count = Counter(texts).most_common(1)[0]
    return [
        ("captions", f"{len(texts):,}"),
        ("distinct captions", f"{len(set(texts)):,} ({100 * len(set(texts)) / len(texts):.0f} %)"),
        ("most frequent caption", f"{100 * count / len(texts):.1f} %: {common}"),
        ("words in use", f"{len(words):,}"),
        ("mean length", f"{sum(words.values()) / len(texts):.1f} words"),
        ("most frequent words", ", ".join(word for word, _ in words.most_common(15))),
    ]


def _lengths(captions: Mapping[str, str]) -> list[tuple[int, int, float]]:
    """(length in words, captions, share of the most frequent length)."""
    counts = Counter(len(text.split()) for text in captions.values())
    top = max(counts.values())
    span: Sequence[int] = range(min(counts), max(counts) + 1)
    return [(length, counts[length], counts[length] / top) for length in span]


def _settings(folder: RunFolder) -> list[tuple[str, str]]:
    settings = {"recipe": folder.settings()["recipe"], "features": folder.fingerprint}
    return [(key, str(value)) for key, value in flat(settings).items()]
