"""Trained runs decoded: their captions, the references, and what they were trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.entries import read_json
from pipeline.results import canonical_id, read_results
from pipeline.scoring import Source, names_of


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What to decode and how; None is the run's own setting."""

    split: str = "test"
    beam: int | None = None
    captions_per_image: int | None = None  # kept in results/SPLIT.nbest.json
    features: Path | None = None
    captions: Path | None = None
    device: str = "auto"
    shuffle: bool = False  # every image gets the features of another
    ensemble: str | None = None  # the runs decode together: what is averaged
    constraints: Path | None = None  # words that captions are to hold
    satisfy: int = 2  # so many of an image's constraints


@dataclass(frozen=True, kw_only=True)
class DecodedRuns:
    """The captions of the runs, one source each, and the references that all share."""

    sources: list[Source]
    references: dict[str, list[str]]
    references_path: Path


def decode_runs(runs: Sequence[Path], decoding: Decoding) -> DecodedRuns:
    """Decode a split with every run and gather what scoring needs.

    The scores of a run are to go to `RUN/scores/SPLIT.json` (`SPLIT-shuffled.json`), those of an
    ensemble to `SPLIT+OTHER.json` in the first run; what was decoded otherwise than the run does
    has a longer name (see `decode_split`). Raises PipelineError, before anything is decoded, when
    the runs have different references for an image or a run cannot be written to.
    """
    from pipeline.decoding import check_runs_before, decode_split  # imports torch

    together = runs[1:] if decoding.ensemble else []
    alone = runs[:1] if decoding.ensemble else runs
    check_runs_before(alone, decoding.split, decoding.captions)
    sources: list[Source] = []
    references: dict[str, list[str]] = {}
    path = Path()
    names = ["+".join(names_of(runs))] if decoding.ensemble else names_of(runs)
    for run, name in zip(alone, names, strict=True):
        decoded = decode_split(
            run,
            decoding.split,
            others=together,
            average=decoding.ensemble or "probabilities",
            features=decoding.features,
            captions=decoding.captions,
            beam=decoding.beam,
            num_captions=decoding.captions_per_image,
            shuffle=decoding.shuffle,
            constraints=decoding.constraints,
            satisfy=decoding.satisfy,
            device=decoding.device,
        )
        references = {canonical_id(i): list(texts) for i, texts in decoded.references.items()}
        path = decoded.captions
        training = frozenset(decoded.train_captions) or None
        if sources and sources[0].training == training:
            training = sources[0].training  # tokenised once
        sources.append(
            Source(
                name=name,
                results=read_results(decoded.results, allow_empty=True),
                nbest=_nbest(decoded.nbest),
                training=training,
                scores_path=run / "scores" / decoded.results.name,
                constraints=decoded.constraints,
                decoding=decoded.manner,
                remarks=tuple(decoded.remarks),
            )
        )
    return DecodedRuns(sources=sources, references=references, references_path=path)


def _nbest(path: Path | None) -> dict[str, list[str]] | None:
    """Canonical id -> captions, best first, of `[{"image_id": ..., "captions": [...]}]`."""
    if path is None:
        return None
    return {canonical_id(item["image_id"]): list(item["captions"]) for item in read_json(path)}
