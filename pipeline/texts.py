"""The captions of a run: tokenised as its recipe says, and the words that it knows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caption.batches import check_features
from caption.data import CaptionData, CaptionedImage, names_in, tokenized
from caption.spacy_tokenizer import spacy_tokenize
from caption.vocabulary import Caption, Vocabulary
from evaluate.tokenizer import ptb_tokenize
from extract.cache import FeatureCache, differences
from pipeline.errors import PipelineError
from pipeline.recipe import Recipe

log = logging.getLogger(__name__)

_VIEW = "settings.view:"  # how a view's features may differ


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The tokenised captions of a run: image id -> captions.

    The first two are learned from, by the rule of `data.tokenizer`; the references are scored by,
    as tokens joined by spaces.
    """

    train: Mapping[str, Sequence[Caption]]
    validation: Mapping[str, Sequence[Caption]]
    train_references: dict[str, list[str]]
    validation_references: dict[str, list[str]]
    names: Mapping[str, str]  # image id -> id in the cache, where that is another


def texts_of(data: CaptionData, recipe: Recipe, cache: FeatureCache) -> Texts:
    """The captions of the training and validation images that the recipe takes.

    Raises CaptionError where such an image has no features, PipelineError on a cache in
    `data.views` that is no view of `cache`.
    """
    settings = recipe.data
    train = data.split("train")[: settings.train_images]
    validation = data.split("val")[: settings.validation_images]
    names = names_in(cache, data.images)
    shown = [names.get(i.image_id, i.image_id) for i in train]
    check_features(shown, cache, "training images", str(data.path))
    _check_views(settings.views, cache, shown, str(data.path))
    shown = [names.get(i.image_id, i.image_id) for i in validation]
    check_features(shown, cache, "validation images", str(data.path))
    train, validation = _first(train, settings.captions), _first(validation, settings.captions)
    _warn_of_empty([*train, *validation], data)
    rule = settings.tokenizer
    scored = "ptb" if rule == "m2" else rule
    return Texts(
        train=_tokens(train, data, rule),
        validation=_tokens(validation, data, rule),
        train_references=_references(train, data, scored),
        validation_references=_references(validation, data, scored),
        names=names,
    )


def vocabulary_of(
    data: CaptionData, texts: Texts, recipe: Recipe
) -> tuple[Vocabulary, tuple[str, ...]]:
    """The words, and those of them that `vocabulary.extra` alone has.

    Raises CaptionError where a split of `vocabulary.splits` has no images, PipelineError where the
    extra file cannot be read.
    """
    counted: list[Caption] = []
    for split in recipe.vocabulary.splits:
        if split == "train":
            found = texts.train
        elif split == "val":
            found = texts.validation
        else:
            images = _first(data.split(split), recipe.data.captions)
            found = _tokens(images, data, recipe.data.tokenizer)
        counted += [text for captions in found.values() for text in captions]
    settings = recipe.vocabulary
    known = Vocabulary.build(counted, min_count=settings.min_count)
    if settings.extra is None:
        return known, ()
    listed = _listed_words(Path(settings.extra), recipe.data.tokenizer)
    extra = tuple(word for word in dict.fromkeys(listed) if word not in known.ids)
    return Vocabulary([*known.words, *extra]), extra


def as_scored(rule: str, captions: Sequence[str]) -> list[str]:
    """Decoded captions as the references are tokenised; M2's words are split otherwise."""
    return ptb_tokenize(list(captions)) if rule == "m2" else list(captions)


def _warn_of_empty(images: Sequence[CaptionedImage], data: CaptionData) -> None:
    empty = [image.image_id for image in images for text in image.captions if not text.strip()]
    if empty:
        log.warning(
            "%s: %d captions are empty, the first of image %s: that is what will be learned for"
            " them; take them out if nobody meant it",
            *(data.path, len(empty), empty[0]),
        )


def _check_views(views: Sequence[str], cache: FeatureCache, ids: Sequence[str], data: str) -> None:
    """Raise PipelineError on a view that differs from the features in more than what it shows."""
    for path in views:
        view = FeatureCache(path)
        lines = differences(cache.fingerprint(), view.fingerprint())
        if len(lines) != 1 or not lines[0].startswith(_VIEW):
            shown = "\n  ".join(lines) or "nothing"
            raise PipelineError(
                f"{view.path} is no view of {cache.path}; they differ in (features / view):\n"
                f"  {shown}\nwanted settings.view alone: extract the photographs once more, by the"
                " same preset and -o view=mirrored or -o view=cropped"
            )
        check_features(ids, view, "training images", data)


def _first(images: Sequence[CaptionedImage], count: int | None) -> list[CaptionedImage]:
    """The images with their first `count` captions."""
    return [
        replace(
            image,
            captions=image.captions[:count],
            tokens=None if image.tokens is None else image.tokens[:count],
        )
        for image in images
    ]


def _tokens(
    images: Sequence[CaptionedImage], data: CaptionData, rule: str
) -> Mapping[str, Sequence[Caption]]:
    """Captions to learn from: with M2's rule in words that may hold blanks."""
    if rule == "m2":
        words = spacy_tokenize(text for image in images for text in image.captions)
        return {image.image_id: [next(words) for _ in image.captions] for image in images}
    return _references(images, data, rule)


def _references(
    images: Sequence[CaptionedImage], data: CaptionData, rule: str
) -> dict[str, list[str]]:
    """Captions to score by: tokens joined by spaces."""
    if rule == "ptb":  # in one go: the official tokenizer looks one caption ahead
        words = iter(ptb_tokenize([text for image in images for text in image.captions]))
        return {image.image_id: [next(words) for _ in image.captions] for image in images}
    return {image.image_id: tokenized(image, data.path) for image in images}


def _listed_words(path: Path, rule: str) -> list[str]:
    """The words of a file, a word or phrase a line, tokenised as captions are."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: cannot be read as a list of words ({error})") from error
    if rule == "m2":
        return [word for words in spacy_tokenize(lines) for word in words]
    texts = ptb_tokenize(lines) if rule == "ptb" else lines
    return [word for text in texts for word in text.split()]
