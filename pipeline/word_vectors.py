"""Given word vectors of a run: which words have one, which are learned, and the record of it.

`RUN/vectors.json` says what was done: the file and its sha256, how many words have its vectors,
which have a learned row. The matrix itself lies in the checkpoints, so a trained run needs the
file no more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from caption.captioner import Captioner
from caption.vector_file import read_vectors
from caption.vocabulary import SPECIALS, Vocabulary
from caption.word_vectors import VectorWords
from extract.counts import counted
from pipeline.entries import read_json
from pipeline.errors import PipelineError, WrongUsage
from pipeline.recipe import Recipe

log = logging.getLogger(__name__)

FILE = "vectors.json"
_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class GivenVectors:
    """The vectors of a vocabulary and the record of where they come from."""

    record: dict[str, Any]
    matrix: torch.Tensor  # (V, E), 0 where learned
    learned: list[int]  # ids

    def put_into(self, model: Captioner) -> None:
        """Freeze them in a captioner of that vocabulary."""
        table(model).give(self.matrix, self.learned)


def table(model: Captioner) -> VectorWords:
    """The words of a captioner with `model.vectors`."""
    words = getattr(model, "words", None)
    if not isinstance(words, VectorWords):
        raise PipelineError(f"{type(model).__name__} has no place for word vectors")
    return words


def check_settings(recipe: Recipe) -> None:
    """Raise WrongUsage where one of `model.vectors` and `vocabulary.vectors` is there alone."""
    width, path = _width(recipe), recipe.vocabulary.vectors
    if width is not None and path is None:
        raise WrongUsage(
            f"the recipe wants word vectors (model.vectors={width}), but vocabulary.vectors names"
            " no file: -o vocabulary.vectors=glove.42B.300d.txt"
        )
    if width is None and path is not None:
        raise WrongUsage(
            f"vocabulary.vectors is {path}, but the captioner learns its words; for words as"
            " vectors give their width too: -o model.vectors=300"
        )
    extra = recipe.vocabulary.extra
    if extra is not None and not Path(extra).is_file():
        raise WrongUsage(f"vocabulary.extra is {extra}: no such file")


def find_vectors(recipe: Recipe, vocabulary: Vocabulary, extra: Sequence[str]) -> GivenVectors:
    """The vectors of the words; `extra` are those that no caption taught.

    The special tokens always have learned rows, and so have words of captions without a vector, as
    long as they are no more than a share of `vocabulary.without_vector`. Raises PipelineError when
    they are more, or when an extra word has no vector.
    """
    settings, width = recipe.vocabulary, _width(recipe)
    if width is None or settings.vectors is None:
        raise PipelineError("vectors are to be found, but the recipe has none")
    path = Path(settings.vectors)
    if not path.is_file():
        raise WrongUsage(f"vocabulary.vectors is {path}: no such file")
    log.info("reading the vectors of %d words from %s", len(vocabulary), path)
    found = read_vectors(path, vocabulary.words[len(SPECIALS) :], width)
    lacking = [word for word in extra if word not in found.vectors]
    if lacking:
        raise PipelineError(
            f"{settings.extra}: {_named(lacking)} without a vector in {path}, and no caption to"
            " learn them from; take them out, or have the list made of words with vectors:"
            " pipeline constraints words --help"
        )
    learned = [n for n, word in enumerate(vocabulary.words) if word not in found.vectors]
    unknown = [vocabulary.words[n] for n in learned[len(SPECIALS) :]]
    captioned = len(vocabulary) - len(SPECIALS) - len(extra)
    if len(unknown) > settings.without_vector * captioned:
        raise PipelineError(
            f"{path}: has no vectors of {_named(unknown)} of the captions' {captioned}, more than"
            f" a share of vocabulary.without_vector = {settings.without_vector:g}; is it of another"
            " language, or are its words in upper case? To learn theirs all the same:"
            " -o vocabulary.without_vector=0.5"
        )
    matrix = torch.zeros(len(vocabulary), width)  # (V, E)
    given = [n for n, word in enumerate(vocabulary.words) if word in found.vectors]
    matrix[given] = torch.tensor([found.vectors[vocabulary.words[n]] for n in given])
    log.info(
        "%d words have vectors; learned are the special tokens and %s", len(given), _named(unknown)
    )
    record = {
        "file": str(path),
        "sha256": found.sha256,
        "width": width,
        "words": len(vocabulary),
        "given": len(given),
        "learned": [vocabulary.words[n] for n in learned],
        "extra": list(extra),
    }
    return GivenVectors(record=record, matrix=matrix, learned=learned)


def to_json(record: dict[str, Any]) -> str:
    """The text of `vectors.json`."""
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def rebuild(run: Path, model: Captioner, vocabulary: Vocabulary) -> None:
    """Give the captioner the learned and the frozen rows of the run's record, without values.

    Raises PipelineError when the record does not fit the vocabulary.
    """
    record = read_json(run / FILE)
    learned = record.get("learned") if isinstance(record, dict) else None
    if not isinstance(learned, list) or not all(word in vocabulary.ids for word in learned):
        raise PipelineError(f"{run / FILE}: `learned` is no list of words of {run / 'vocab.json'}")
    words = table(model)
    words.give(words.vectors, [vocabulary.ids[word] for word in learned])


def _width(recipe: Recipe) -> int | None:
    width: int | None = getattr(recipe.model_config(), "vectors", None)
    return width


def _named(words: Sequence[str]) -> str:
    shown = ", ".join(map(repr, words[:_NAMED]))
    rest = f", and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return counted(len(words), "word") + (f" ({shown}{rest})" if words else "")
