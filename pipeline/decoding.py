"""Splits and images decoded to captions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from caption.batches import FeatureSource, check_features
from caption.captioner import Captioner
from caption.config import DecodingConfig
from caption.data import read_captions
from caption.decode import beam_search
from caption.vocabulary import Vocabulary
from pipeline.ensembles import check_runs, load_runs
from pipeline.entries import images_of
from pipeline.files import write_text
from pipeline.progress import Progress
from pipeline.results import as_given, write_results
from pipeline.run_folder import choose_device, open_run


@dataclass(frozen=True, kw_only=True)
class Captions:
    """Captions of images, best first, with the log-probability of each."""

    captions: dict[str, list[str]]
    scores: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A decoded split: where its results are, and what they are to be scored by."""

    results: Path
    nbest: Path | None
    captions: Path  # the caption file
    references: dict[str, list[str]]
    train_captions: list[str]


def decode_ids(
    model: Captioner,
    ids: Sequence[str],
    source: FeatureSource,
    vocabulary: Vocabulary,
    settings: DecodingConfig,
    device: torch.device,
    keep: int = 1,
    progress: Progress | None = None,
) -> Captions:
    """Beam-search captions of images, `keep` each, best first."""
    captions: dict[str, list[str]] = {}
    scores: dict[str, list[float]] = {}
    owners = source.assigned(ids, "decode")
    for first in range(0, len(ids), settings.images):
        batch = ids[first : first + settings.images]
        features = source.features([owners[image] for image in batch]).to(device)
        with torch.no_grad():
            state = model.start(model.encode(features))
            found = beam_search(
                model.step, state, len(batch), settings.beam, settings.max_words, device, keep
            )
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
    return Captions(captions=captions, scores=scores)


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
    device: str = "auto",
) -> Decoded:
    """Decode a split with a run's best checkpoint into `RUN/results/SPLIT.json`.

    With `others` they and the run decode as an ensemble, which averages `average`; the file is
    then `SPLIT+OTHER.json`, in the first run. With `shuffle` every image gets another's features
    and the file is `SPLIT-shuffled.json`. `num_captions` also writes the n-best lists, widening
    the beam if need be. Raises an error when features are missing or were made otherwise than
    the run's.
    """
    folder = open_run(run)
    where = choose_device(device)
    cache = folder.cache(features)
    check_runs(others, cache)
    data = read_captions(folder.caption_file(captions))
    images = images_of(data, split)
    ids = [image.image_id for image in images]
    check_features(ids, cache, f"{split} images", str(data.path))
    folder, model, vocabulary = load_runs([run, *others], average, where)
    settings = folder.recipe.decoding
    width = max(beam or settings.beam, num_captions or 1)
    settings = replace(settings, beam=width)
    shuffled = shuffle or folder.recipe.data.shuffle_features
    source = FeatureSource(cache, model.needs, shuffled=shuffled, seed=folder.recipe.seed)
    name = "+".join([split, *(other.resolve().name for other in others)])
    name = f"{name}-shuffled" if shuffle else name
    with Progress(len(ids), unit="images", label=f"decode {name}") as progress:
        keep = num_captions or 1
        found = decode_ids(model, ids, source, vocabulary, settings, where, keep, progress)
    path = folder.results(name)
    write_results(path, {as_given(image): texts[0] for image, texts in found.captions.items()})
    nbest = _write_nbest(path, found) if num_captions else None
    train = [i for i in data.images if i.split in ("train", "restval")]
    return Decoded(
        results=path,
        nbest=nbest,
        captions=data.path,
        references={image.image_id: image.captions for image in images},
        train_captions=[text for image in train for text in image.captions],
    )


def _write_nbest(results: Path, found: Captions) -> Path:
    path = results.with_name(f"{results.stem}.nbest.json")
    entries = [
        {"image_id": as_given(image), "captions": texts, "log_probabilities": found.scores[image]}
        for image, texts in found.captions.items()
    ]
    write_text(path, json.dumps(entries, ensure_ascii=False, indent=0))
    return path
