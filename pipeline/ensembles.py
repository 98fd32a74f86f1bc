"""Runs loaded to decode: one alone, or several as an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from caption.captioner import Captioner
from caption.ensemble import Ensemble
from caption.vocabulary import Vocabulary
from extract.cache import FeatureCache
from pipeline.errors import PipelineError
from pipeline.run_folder import RunFolder, open_run


def load_runs(
    runs: Sequence[Path], average: str, device: torch.device
) -> tuple[RunFolder, Captioner, Vocabulary]:
    """The first run's folder, the captioner of all runs together, and their vocabulary.

    `average` is what an ensemble averages. Raises PipelineError where vocabularies differ.
    """
    folders = [open_run(run) for run in runs]
    first = folders[0]
    loaded = [folder.load(device) for folder in folders]
    model, vocabulary = loaded[0]
    if len(loaded) == 1:
        return first, model, vocabulary
    for folder, (_, other) in zip(folders[1:], loaded[1:], strict=True):
        lines = vocabulary.differences(other)
        if lines:
            raise PipelineError(
                f"{first.path} and {folder.path} have different vocabularies"
                f" ({'; '.join(lines)}): runs of one ensemble must share theirs"
            )
    ensemble = Ensemble([member for member, _ in loaded], average)
    return first, ensemble.to(device).eval(), vocabulary


def check_runs(runs: Sequence[Path], cache: FeatureCache) -> None:
    """Refuse features that were made otherwise than those any of the runs was trained on."""
    for run in runs:
        open_run(run).check(cache)
