"""What was not a run's own in the decoding of a split, and how the results say so by their name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caption.config import DecodingConfig
from caption.data import TRAIN_SPLITS, CaptionData
from extract.cache import FeatureCache
from pipeline.run_folder import RunFolder

_SPLITS = (*TRAIN_SPLITS, "val", "test")  # taken to be the run's own where nothing is added


def manner_of(
    run: RunFolder, split: str, settings: DecodingConfig, data: CaptionData, cache: FeatureCache
) -> tuple[str, dict[str, Any]]:
    """The ending of the results' name, such as `-beam1` or `-captions-FILE`, and what to keep.

    Captions and features are not in the name where they have no splits and `split` is a name of
    the caller's own for them, such as nocaps-val. An imported run that was told of none takes all
    captions and features as its own.
    """
    apart = _unlike_run(run, split, settings.beam, data, cache)
    kept = {
        "beam": settings.beam,
        "max_words": settings.max_words,
        "captions": str(data.path.resolve()),
        "features": str(cache.path.resolve()),
        "unlike_run": [words for _, words in apart],
    }
    return "".join(ending for ending, _ in apart), kept


def _unlike_run(
    run: RunFolder, split: str, beam: int, data: CaptionData, cache: FeatureCache
) -> list[tuple[str, str]]:
    """Ending of the name and words of whatever is not the run's own."""
    found: list[tuple[str, str]] = []
    own = run.recipe.decoding.beam
    if beam != own:
        found.append((f"-beam{beam}", f"beam {beam} (the run's own: {own})"))
    named = split not in _SPLITS and all(image.split is None for image in data.images)
    for kind, given, theirs in (
        ("captions", data.path, run.captions),
        ("features", cache.path, run.features),
    ):
        if theirs is not None and _other(given, theirs):
            stem = given.resolve().name.split(".")[0]
            ending = "" if named else f"-{kind}-{stem}"
            found.append((ending, f"{kind} {given} (the run's own: {theirs})"))
    return found


def _other(given: Path, own: Path) -> bool:
    """Whether these are two files or folders; one that was moved is known by its name."""
    if not own.exists():
        return given.resolve().name != own.name
    return not given.samefile(own)
