"""Splits and images decoded to captions."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from caption.batches import FeatureSource, check_features
from caption.captioner import Captioner
from caption.config import DecodingConfig
from caption.constrained import MOST, SATISFY, Machine, constrained_beam_search
from caption.data import TRAIN_SPLITS, CaptionData, CaptionedImage, names_in, read_captions
from caption.decode import beam_search
from caption.vocabulary import Vocabulary
from extract.cache import image_id_of
from pipeline.constraints import Asked, ConstraintFile, asked_of, read_constraints
from pipeline.devices import choose_device
from pipeline.ensembles import check_runs, load_runs
from pipeline.entries import images_of
from pipeline.errors import PipelineError
from pipeline.files import check_writable, write_text
from pipeline.manner import manner_of
from pipeline.progress import Progress
from pipeline.results import as_given, canonical_id, write_results
from pipeline.run_folder import open_run

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Captions:
    """Captions of images, best first, with the log-probability of each."""

    captions: dict[str, list[str]]
    scores: dict[str, list[float]]
    satisfied: dict[str, int] = field(default_factory=dict)  # constraints that the best one holds


@dataclass(frozen=True, kw_only=True)
class ImageConstraints:
    """The machine of each image's constraints, and how many of them a caption is to satisfy."""

    machines: Mapping[str, Machine]
    satisfy: int = SATISFY


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A decoded split: where its results are, and what they are to be scored by."""

    results: Path
    nbest: Path | None
    captions: Path  # the caption file
    references: dict[str, list[str]]
    train_captions: list[str]
    manner: dict[str, Any]  # how it was decoded
    constraints: dict[str, Any] | None = None  # what was asked by them and what came of it
    remarks: list[str] = field(default_factory=list)  # what was left out of that


def decode_ids(
    model: Captioner,
    ids: Sequence[str],
    source: FeatureSource,
    vocabulary: Vocabulary,
    settings: DecodingConfig,
    device: torch.device,
    keep: int = 1,
    progress: Progress | None = None,
    constraints: ImageConstraints | None = None,
) -> Captions:
    """Beam-search captions of images, `keep` each, best first, under constraints where given."""
    captions: dict[str, list[str]] = {}
    scores: dict[str, list[float]] = {}
    satisfied: dict[str, int] = {}
    owners = source.assigned(ids, "decode")
    for batch in _batches(ids, settings.images, constraints):
        features = source.features([owners[image] for image in batch]).to(device)
        with torch.no_grad():
            state = model.start(model.encode(features))
            beam, length = settings.beam, settings.max_words
            if constraints is None:
                found = beam_search(model.step, state, len(batch), beam, length, device, keep)
            else:
                machines = [constraints.machines[image] for image in batch]
                found = constrained_beam_search(
                    model.step, state, machines, beam, length, device, keep, constraints.satisfy
                )
                satisfied.update(zip(batch, found.satisfied[:, 0].tolist(), strict=True))
        rows, values = found.tokens.tolist(), found.scores.tolist()
        for image, row, value in zip(batch, rows, values, strict=True):
            there = [k for k, score in enumerate(value) if score > float("-inf")]
            words = [vocabulary.decode(row[k]) for k in there]
            if settings.collapse:
                words = [[word for word, _ in groupby(each)] for each in words]
            captions[image] = [" ".join(each) for each in words]
            scores[image] = [value[k] for k in there]
        if progress is not None:
            progress.update(len(batch))
    return Captions(
        captions={image: captions[image] for image in ids},
        scores={image: scores[image] for image in ids},
        satisfied=satisfied,
    )


def _batches(
    ids: Sequence[str], images: int, constraints: ImageConstraints | None
) -> Iterator[Sequence[str]]:
    """The images in batches; those with constraints by the number of states they need.

    Each state has a beam of its own, so images of more states than single words need are decoded
    fewer at a time.
    """
    if constraints is None:
        yield from (ids[first : first + images] for first in range(0, len(ids), images))
        return
    states = {image: len(constraints.machines[image].others) for image in ids}
    for count, same in groupby(sorted(ids, key=states.__getitem__), key=states.__getitem__):
        group = list(same)
        size = max(1, images * 2**MOST // max(2**MOST, count))
        yield from (group[first : first + size] for first in range(0, len(group), size))


def decode_split(
    run: Path,
    split: str,
    *,
    others: Sequence[Path] = (),
    average: str = "probabilities",
    features: Path | None = None,
    captions: Path | None = None,
    beam: int | None = None,
    num_captions: int | None = None,
    shuffle: bool = False,
    constraints: Path | None = None,
    satisfy: int = SATISFY,
    device: str = "auto",
) -> Decoded:
    """Decode a split with a run's best checkpoint into `RUN/results/SPLIT.json`.

    A caption file given in place of the run's may be without splits: all its images are decoded
    then. Images whose ids the cache lacks are looked up by their file names.
    With `others` they and the run decode as an ensemble, which averages `average`; the file is
    then `SPLIT+OTHER.json`, in the first run. With `shuffle` every image gets another's features:
    `SPLIT-shuffled.json`. `num_captions` also writes the n-best lists, widening the beam if need
    be. With `constraints`, a file of words that captions are to hold, `satisfy` of an image's are
    wanted in its caption: `SPLIT-constrained.json`. A beam or files that are not the run's own are
    in the name (`manner_of`). Raises an error when features are missing or made otherwise.
    """
    folder, where = open_run(run), choose_device(device)
    cache = folder.cache(features)
    check_runs(others, cache)
    data = read_captions(folder.caption_file(captions))
    images = _images(data, split, whole=captions is not None)
    ids = [image.image_id for image in images]
    names = names_in(cache, data.images)
    check_features([names.get(i, i) for i in ids], cache, f"{split} images", str(data.path))
    asked_for = read_constraints(constraints) if constraints is not None else None
    folder, model, vocabulary = load_runs([run, *others], average, where)
    settings, keep = folder.recipe.decoding, num_captions or 1
    settings = replace(settings, beam=max(beam or settings.beam, keep))
    shuffled, seed = shuffle or folder.recipe.data.shuffle_features, folder.recipe.seed
    source = FeatureSource(cache, model.needs, shuffled=shuffled, seed=seed, names=names)
    asked = None if asked_for is None else _asked(asked_for, images, vocabulary)
    under = None if asked is None else ImageConstraints(machines=asked.machines, satisfy=satisfy)
    ending, manner = manner_of(folder, split, settings, data, cache)
    ending += "-shuffled" * shuffle + "-constrained" * (asked is not None)
    name = "+".join([split, *(other.resolve().name for other in others)]) + ending
    with Progress(len(ids), unit="images", label=f"decode {name}") as progress:
        found = decode_ids(model, ids, source, vocabulary, settings, where, keep, progress, under)
    path = folder.results(name)
    write_results(path, {as_given(image): texts[0] for image, texts in found.captions.items()})
    nbest = _write_nbest(path, found) if num_captions else None
    return Decoded(
        results=path,
        nbest=nbest,
        captions=data.path,
        references={image.image_id: image.captions for image in images},
        manner={**manner, "ensemble": average if others else None},
        train_captions=[t for i in data.images if i.split in TRAIN_SPLITS for t in i.captions],
        constraints=None if asked is None else asked.record(satisfy, found.satisfied),
        remarks=[] if asked is None else asked.remarks(),
    )


def check_runs_before(runs: Sequence[Path], split: str, captions: Path | None) -> None:
    """Raise PipelineError where decoding a split with these runs would be for nothing.

    That is where they have different references, or where a run cannot be written to.
    """
    folders = [open_run(run) for run in runs]
    for folder in folders:
        check_writable(folder.results(split).parent)
        check_writable(folder.scores(split).parent)
    files = {folder.caption_file(captions).resolve(): folder.path for folder in folders}
    if len(files) == 1:
        return
    known = {
        run: {canonical_id(i.image_id): i.captions for i in read_captions(path).split(split)}
        for path, run in files.items()
    }
    (first, wanted), *others = known.items()
    for run, found in others:
        if found != wanted:
            raise PipelineError(
                f"{run} and {first} have different references for split {split!r};"
                " give both the same captions: --captions FILE"
            )


def _asked(file: ConstraintFile, images: Sequence[CaptionedImage], vocabulary: Vocabulary) -> Asked:
    """The constraints of the images, which the file may have by id or by file name."""
    aliases = {image.image_id: [image.image_id, *_file_id(image)] for image in images}
    return asked_of(file, aliases, vocabulary)


def _images(data: CaptionData, split: str, *, whole: bool) -> list[CaptionedImage]:
    """The images of a split; with `whole`, all those of a file without splits."""
    if whole and all(image.split is None for image in data.images):
        log.info("%s has no splits: all its images are taken as %r", data.path, split)
        return data.images
    return images_of(data, split)


def _file_id(image: CaptionedImage) -> list[str]:
    return [] if image.filename is None else [image_id_of(image.filename)]


def _write_nbest(results: Path, found: Captions) -> Path:
    path = results.with_name(f"{results.stem}.nbest.json")
    entries = [
        {"image_id": as_given(image), "captions": texts, "log_probabilities": found.scores[image]}
        for image, texts in found.captions.items()
    ]
    write_text(path, json.dumps(entries, ensure_ascii=False, indent=0))
    return path
