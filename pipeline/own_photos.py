"""Photographs captioned by a run, with the features that the run was trained on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from caption.batches import FeatureSource, check_features
from extract import presets
from extract.boxes import read_boxes
from extract.cache import FeatureCache, ImageFeatures, differences, fingerprint_of
from extract.extractors import make_extractor
from extract.prepared import FeatureExtractor
from extract.run import Failure, extract_in_memory
from extract.sources import find_sources
from pipeline.decoding import Captions, decode_ids
from pipeline.devices import choose_device
from pipeline.ensembles import check_runs, load_runs
from pipeline.errors import PipelineError, WrongUsage
from pipeline.progress import Progress
from pipeline.run_folder import RunFolder, is_run

_AT_A_TIME = 256  # photographs whose features are held in memory


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Captions by image id, the files behind the ids, and what could not be read."""

    found: Captions
    files: dict[str, Path]
    failures: list[Failure]


class InMemory:
    """Features just made, read like a cache."""

    def __init__(self, records: Sequence[ImageFeatures]) -> None:
        self.records = {record.image_id: record for record in records}

    def read(self, image_id: str, streams: Sequence[str] | None = None) -> ImageFeatures:
        return self.records[image_id]


def caption_photos(
    inputs: Sequence[Path],
    run: Path,
    *,
    others: Sequence[Path] = (),
    average: str = "probabilities",
    beam: int | None = None,
    keep: int = 1,
    boxes: Path | None = None,
    weights: Path | None = None,
    features: Path | None = None,
    device: str = "auto",
    relative_ids: bool = False,
) -> Outcome:
    """Caption images; with `features` a ready cache is read instead of extracting.

    `weights` is the checkpoint of the run's detector; without it the preset's own is looked up.

    With `others` they and the run decode as an ensemble, which averages `average`. With
    `relative_ids` images go by their path in the folder: files of one name can be captioned.

    Raises PipelineError when the features would differ from those the run was trained on, and
    WrongUsage where an input is itself a run folder.
    """
    where = choose_device(device)
    _refuse_runs(inputs, [run, *others])
    sources = find_sources(inputs, relative_ids=relative_ids)
    folder, model, vocabulary = load_runs([run, *others], average, where)
    settings = folder.recipe.decoding
    settings = replace(settings, beam=max(beam or settings.beam, keep))
    extractor = None
    if features is not None:
        ready = FeatureCache(features)
        check_runs([run, *others], ready)
        check_features([source.image_id for source in sources], ready, "images", None)
    else:
        extractor = extractor_of(folder, model.needs, boxes, str(where), weights)
    found = Captions(captions={}, scores={})
    failures: list[Failure] = []
    with Progress(len(sources), unit="images", label="caption") as progress:
        for first in range(0, len(sources), _AT_A_TIME):
            part = sources[first : first + _AT_A_TIME]
            cache: Any
            if extractor is None:
                cache, ids = ready, [source.image_id for source in part]
            else:
                records, failed = extract_in_memory(part, extractor)
                cache, ids = InMemory(records), [record.image_id for record in records]
                failures += failed
            source = FeatureSource(cache, model.needs)
            decoded = decode_ids(model, ids, source, vocabulary, settings, where, keep)
            found.captions.update(decoded.captions)
            found.scores.update(decoded.scores)
            progress.update(len(part))
    files = {source.image_id: source.path for source in sources}
    return Outcome(found=found, files=files, failures=failures)


def _refuse_runs(inputs: Sequence[Path], runs: Sequence[Path]) -> None:
    found = [path for path in inputs if is_run(path)]
    if found:
        options = " ".join(f"--run {shlex.quote(str(path))}" for path in [*runs, *found])
        raise WrongUsage(
            f"{found[0]} is a run folder, not photographs; to decode with several runs repeat the"
            f" option: {options}"
        )


def extractor_of(
    folder: RunFolder,
    streams: Sequence[str],
    boxes: Path | None,
    device: str,
    weights: Path | None = None,
) -> FeatureExtractor:
    """The extractor that made the run's features.

    Raises WrongUsage where an option has to give what is not known, PipelineError when this
    installation makes other features.
    """
    name, settings = folder.fingerprint.get("preset"), _nested(folder.fingerprint).get("settings")
    if not isinstance(name, str) or not isinstance(settings, dict):
        raise WrongUsage(
            f"{folder.path}: its features were not made by a preset of pipeline extract; give"
            " --features CACHE"
        )
    preset = presets.from_settings(settings)
    if "regions" in streams and boxes is None and isinstance(preset, presets.Preset):
        raise WrongUsage(
            f"{folder.path} was trained on regions in given boxes (preset {name}): give"
            " --boxes BOXES.json for these images"
        )
    given = read_boxes(boxes) if boxes is not None else None
    extractor = make_extractor(name, preset, device, given, weights)
    lines = differences(folder.fingerprint, _plain(fingerprint_of(extractor.meta)))
    if lines:
        shown = "\n  ".join(lines)
        raise PipelineError(
            f"this installation makes other features than {folder.path} was trained on (trained on"
            f" / here):\n  {shown}\ngive features made as before by --features CACHE"
            + (", or its checkpoint by --weights" if any("weights." in k for k in lines) else "")
        )
    return extractor


def _nested(settings: dict[str, Any]) -> dict[str, Any]:
    """`a.b` -> value as nested mappings."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return result


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As `config.yaml` gives it back."""
    plain: dict[str, Any] = yaml.safe_load(yaml.safe_dump(settings))
    return plain
