"""A run folder: what one training left, and how to bring its captioner back.

config.yaml      the recipe as resolved, the paths given, the features' fingerprint
vocab.json       the words in id order
vectors.json     of runs on given word vectors: which words have one, and the file's sha256
best/ last/      checkpoints
metrics.jsonl    a line per update and per validation
results/ scores/ SPLIT.json
report.html
"""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from caption import checkpoint
from caption.captioner import Captioner
from caption.errors import CaptionError
from caption.registry import entry
from caption.vocabulary import Vocabulary
from extract.cache import FeatureCache, differences
from pipeline import recipe as recipes
from pipeline import word_vectors
from pipeline.errors import PipelineError, WrongUsage
from pipeline.recipe import Recipe

log = logging.getLogger(__name__)

_PUT_BACK, _ANEW = "put back a copy of the file", "or train again into another --out"


@dataclass(frozen=True)
class RunFolder:
    """The paths and settings of a run."""

    path: Path
    recipe: Recipe
    captions: Path | None  # None: an imported run that was told of none
    features: Path | None
    fingerprint: dict[str, Any]  # of the features it was trained on; empty: not known
    widths: dict[str, int]  # stream -> width of the features

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def results(self, name: str) -> Path:
        """The results file of a split."""
        return self.path / "results" / f"{name}.json"

    def scores(self, name: str) -> Path:
        """The scores file of a split."""
        return self.path / "scores" / f"{name}.json"

    def settings(self) -> dict[str, Any]:
        """What `config.yaml` holds."""
        return {
            "recipe": self.recipe.resolved(),
            "captions": None if self.captions is None else str(self.captions),
            "features": None if self.features is None else str(self.features),
            "widths": self.widths,
            "fingerprint": self.fingerprint,
        }

    def vocabulary(self) -> Vocabulary:
        """The run's words. Raises PipelineError, with what to do, where the file is broken."""
        try:
            return Vocabulary.load(self.path / "vocab.json")
        except CaptionError as error:
            raise PipelineError(
                f"{error}; {_PUT_BACK} (a run on the same captions with the same settings has the"
                f" same), {_ANEW}"
            ) from error

    def build(self, vocabulary: Vocabulary) -> Captioner:
        """The captioner with fresh weights; given word vectors come with the checkpoint's."""
        config = self.recipe.model_config()
        model = entry(self.recipe.model_name()).build(config, self.widths, len(vocabulary))
        if (self.path / word_vectors.FILE).exists():
            word_vectors.rebuild(self.path, model, vocabulary)
        return model

    def load(self, device: torch.device) -> tuple[Captioner, Vocabulary]:
        """The best captioner so far, ready to decode."""
        best = checkpoint.find(self.path / "best")
        if best is None:
            raise PipelineError(
                f"{self.path}: no best/ checkpoint yet; type pipeline train --out"
                f" {shlex.quote(str(self.path))}"
            )
        vocabulary = self.vocabulary()
        record = self.path / word_vectors.FILE
        if self.recipe.model_config().vectors is not None and not record.exists():
            raise PipelineError(
                f"{record}: not there, but it says which words have given vectors; copy it from"
                " where the run was trained"
            )
        model = self.build(vocabulary)
        checkpoint.load_model(best, model)
        return model.to(device).eval(), vocabulary

    def cache(self, given: Path | None = None) -> FeatureCache:
        """The features given, else the run's own, checked. Raises PipelineError if neither is."""
        path = given or self.features
        if path is None:
            raise WrongUsage(f"{self.path} was imported without features: give --features CACHE")
        if path is not given:
            self._refuse_moved(path, "features", "--features PATH")
        cache = FeatureCache(path)
        self.check(cache)
        return cache

    def caption_file(self, given: Path | None = None) -> Path:
        """The caption file given, else the run's own. Raises PipelineError if neither is."""
        path = given or self.captions
        if path is None:
            raise WrongUsage(f"{self.path} was imported without captions: give --captions FILE")
        if path is not given:
            self._refuse_moved(path, "captions", "--captions FILE")
        return path

    def _refuse_moved(self, path: Path, what: str, option: str) -> None:
        if not path.exists():
            raise PipelineError(
                f"{self.path} was trained on the {what} {path}, which are not there any more; if"
                f" they were moved, give {option}"
            )

    def check(self, cache: FeatureCache) -> None:
        """Refuse features that were made otherwise than those the run was trained on."""
        if not self.fingerprint:
            log.warning(
                "%s was imported: how its features were made is not known; %s is taken as it is",
                *(self.path, cache.path),
            )
            return
        lines = differences(self.fingerprint, cache.fingerprint())
        if lines:
            shown = "\n  ".join(lines)
            raise PipelineError(
                f"{cache.path} holds other features than {self.path} was trained on"
                f" (trained on / found):\n  {shown}\nextract with the run's preset, or train a new"
                " run on these features"
            )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def open_run(path: str | Path) -> RunFolder:
    """The run in a folder. Raises PipelineError naming what is missing."""
    path = Path(path)
    config = path / "config.yaml"
    if not config.is_file():
        raise WrongUsage(f"{path}: no run folder (no config.yaml); type pipeline train --help")
    try:
        content = recipes.read_yaml(config)
        for key in ("recipe", "widths", "fingerprint"):
            if not isinstance(content.get(key), dict):
                raise PipelineError(f"{config}: no settings under {key!r}: no run's config")
        return RunFolder(
            path=path,
            recipe=recipes.from_mapping(Recipe, content["recipe"], f"{config}: recipe"),
            captions=_path(content.get("captions")),
            features=_path(content.get("features")),
            fingerprint=content["fingerprint"],
            widths=content["widths"],
        )
    except PipelineError as error:
        raise PipelineError(f"{error}; {_PUT_BACK}, {_ANEW}") from error


def is_run(path: Path) -> bool:
    """Whether the path is a run folder."""
    return (path / "config.yaml").is_file() and (path / "vocab.json").is_file()
