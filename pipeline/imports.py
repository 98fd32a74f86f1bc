"""Checkpoints of the papers' releases made into run folders."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caption import checkpoint
from caption.importers import meshed_memory
from caption.vocabulary import Vocabulary
from extract.cache import FeatureCache
from pipeline import recipe as recipes
from pipeline.errors import PipelineError
from pipeline.files import write_text
from pipeline.recipe import Recipe
from pipeline.run_folder import RunFolder

log = logging.getLogger(__name__)


def import_m2(
    file: Path,
    vocab: Path,
    out: Path,
    *,
    features: Path | None = None,
    captions: Path | None = None,
) -> RunFolder:
    """A run folder of the Meshed-Memory release's checkpoint and vocabulary.

    Without features and captions the run asks for them when it is evaluated. Raises an error
    before anything is written when the files do not fit each other, or `out` is not empty.
    """
    if out.exists() and any(out.iterdir()):
        raise PipelineError(f"{out} is not empty; give a new folder as --out")
    weights = meshed_memory.read_weights(file)
    vocabulary = meshed_memory.read_vocabulary(vocab)
    config = meshed_memory.config_of(weights)
    tensors = meshed_memory.renamed(weights, config)
    width = tensors["features.project.weight"].shape[1]
    run = RunFolder(
        path=out,
        recipe=_recipe("m2/m2", "meshed_memory", config, f"imported from {file.name}"),
        captions=None if captions is None else captions.resolve(),
        features=None if features is None else features.resolve(),
        fingerprint={} if features is None else FeatureCache(features).fingerprint(),
        widths={config.stream: width},
    )
    _write(run, vocabulary, tensors, file)
    return run


def _recipe(base: str, name: str, config: Any, source: str) -> Recipe:
    """The release's training recipe with the checkpoint's own sizes."""
    model: Mapping[str, Any] = {"name": name, **dataclasses.asdict(config)}
    recipe = recipes.load(base)
    return dataclasses.replace(recipe, name=f"{base} (imported)", source=source, model=model)


def _write(run: RunFolder, vocabulary: Vocabulary, tensors: Mapping[str, Any], file: Path) -> None:
    words = tensors["words.weight"].shape[0]
    if words != len(vocabulary):
        raise PipelineError(
            f"{file} was trained with {words} words, the vocabulary has {len(vocabulary)}: wanted"
            " the vocab.pkl that came with the checkpoint"
        )
    model = run.build(vocabulary)
    checkpoint.fill(model, dict(tensors), str(file))
    run.path.mkdir(parents=True, exist_ok=True)
    meta = {"model": run.recipe.model_name(), "imported": file.name}
    checkpoint.save(run.path / "best", model, meta, None)
    write_text(run.path / "vocab.json", vocabulary.to_json())
    write_text(run.path / "config.yaml", recipes.dump(recipes.to_plain(run.settings())))
    log.info("%s: %d words, %d numbers", run.path, words, sum(t.numel() for t in tensors.values()))
