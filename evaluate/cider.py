"""CIDEr-D (Vedantam et al., CVPR 2015): the CIDEr of the COCO evaluation, and as a reward.

A caption is four vectors of n-gram weights (orders 1 to 4): count times log(N / df). A candidate
is compared with each reference by a clipped cosine and a Gaussian penalty on their lengths;
a length is the number of bigrams, so no word and one word are both 0, as in the official program.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evaluate.cider_corpus import corpus_cider
from evaluate.document_frequency import DocumentFrequency
from evaluate.errors import EvaluateError
from evaluate.ngrams import ORDERS, TokenStyle, ngram_counts
from evaluate.pairs import Id, paired

__all__ = ["CiderReward", "DocumentFrequency", "TokenStyle", "cider_d", "cider_warnings"]

_SIGMA = 6.0
_SCALE = 10.0


def cider_d(
    references: Mapping[Id, Sequence[str]],
    candidates: Mapping[Id, str],
    table: DocumentFrequency | None = None,
) -> tuple[float, list[float]]:
    """CIDEr-D of tokenised strings, 0 to 10: the mean over images, and the value of each image.

    Without a table the documents are the images at hand, as the papers report it: then one
    image alone always scores 0 (see `cider_warnings`). Raises EvaluateError when the ids differ.
    """
    pairs = paired(references, candidates)
    if not pairs:
        return 0.0, []
    style = table.style if table is not None else TokenStyle()
    values = corpus_cider(
        [[style.tokens(text.split()) for text in texts] for texts, _ in pairs],
        [style.tokens(candidate.split()) for _, candidate in pairs],
        table,
        _SIGMA,
    )
    scores = (_SCALE * values).tolist()
    return sum(scores) / len(scores), scores


def cider_warnings(references: Mapping[Id, Sequence[str]]) -> list[str]:
    """What a user should know before trusting CIDEr on these references without a table."""
    if not any(text.split() for texts in references.values() for text in texts):
        return ["CIDEr is 0: every reference is empty after tokenisation"]
    if len(references) == 1:
        return [
            "CIDEr is 0: with one image every n-gram is in every document and weighs log(1/1) = 0;"
            " score more images or give a document-frequency table"
        ]
    return []


class CiderReward:
    """CIDEr-D against a fixed table, for self-critical training.

    `references` (image id -> tokenised captions) are prepared once per image, at first use.
    Tokens follow the table's style (words or ids, with or without end of sentence); `max_length`
    cuts references and candidates to so many tokens, and a cut one has no end of sentence.
    """

    def __init__(
        self,
        references: Mapping[Any, Sequence[str]],
        df: DocumentFrequency,
        *,
        eos: bool | None = None,
        max_length: int | None = None,
    ) -> None:
        if eos is not None and eos != (df.style.eos is not None):
            raise EvaluateError(
                f"eos is {eos} but the document-frequency table was counted"
                f" {'with' if df.style.eos is not None else 'without'} an end-of-sentence token;"
                " build the table to match"
            )
        if max_length is not None and max_length < 1:
            raise EvaluateError(f"max_length is {max_length}, wanted 1 or more tokens")
        self.table = df
        self.max_length = max_length
        self._references = references
        self._prepared: dict[Hashable, _PreparedImage] = {}

    def reward(self, ids: Sequence[Hashable], captions: Sequence[Sequence[str]]) -> np.ndarray:
        """One score (0 to 10) per caption; `ids[k]` is the image of `captions[k]`, given as words.

        Returns float64 of shape (captions,). Raises EvaluateError on an image without references.
        """
        if len(ids) != len(captions):
            raise EvaluateError(f"{len(ids)} ids for {len(captions)} captions, wanted one each")
        tokens, cut = self.table.style.tokens, self.max_length
        return np.array(
            [
                self._image(image).score(tokens(words, cut))
                for image, words in zip(ids, captions, strict=True)
            ],
            dtype=np.float64,
        )  # (captions,)

    def _image(self, image: Hashable) -> _PreparedImage:
        prepared = self._prepared.get(image)
        if prepared is None:
            texts = self._references.get(image)
            if not texts:
                raise EvaluateError(f"image {image!r} has no references to reward captions by")
            tokens = self.table.style.tokens
            prepared = _PreparedImage(
                (tokens(text.split(), self.max_length) for text in texts), self.table
            )
            self._prepared[image] = prepared
        return prepared


class _PreparedImage:
    """The references of one image, turned inside out: n-gram -> its weight in each reference."""

    def __init__(self, references: Iterable[Sequence[str]], table: DocumentFrequency) -> None:
        self._table = table
        self._lengths: list[int] = []
        # Per order: n-gram -> (weight of one occurrence, [(reference, weight there), ...])
        self._found: list[dict[str, tuple[float, list[tuple[int, float]]]]] = []
        self._norms: list[list[float]] = []  # per order, per reference
        counted = [(len(tokens), ngram_counts(tokens)) for tokens in references]
        self._lengths = [_bigrams(length) for length, _ in counted]
        for order in range(ORDERS):
            found: dict[str, tuple[float, list[tuple[int, float]]]] = {}
            squares = [0.0] * len(counted)
            for index, (_, counters) in enumerate(counted):
                for ngram, count in counters[order].items():
                    if ngram not in found:
                        found[ngram] = (table.weight(ngram), [])
                    weight, places = found[ngram]
                    places.append((index, count * weight))
                    squares[index] += (count * weight) ** 2
            self._found.append(found)
            self._norms.append([math.sqrt(s) for s in squares])

    def score(self, tokens: Sequence[str]) -> float:
        """Mean over references and orders of clipped cosine times length penalty, times 10."""
        references = len(self._lengths)
        sums = [0.0] * references  # over orders
        weight_of = self._table.weight
        for order, counter in enumerate(ngram_counts(tokens)):
            found, norms = self._found[order], self._norms[order]
            square = 0.0
            products = [0.0] * references
            for ngram, count in counter.items():
                entry = found.get(ngram)
                if entry is None:
                    square += (count * weight_of(ngram)) ** 2
                    continue
                weight, places = entry
                here = count * weight
                square += here * here
                for index, there in places:
                    products[index] += min(here, there) * there
            norm = math.sqrt(square)
            for index, product in enumerate(products):
                scale = norm * norms[index]
                sums[index] += product / scale if scale else product
        length = _bigrams(len(tokens))
        total = sum(
            value * math.exp(-((length - other) ** 2) / (2 * _SIGMA**2))
            for value, other in zip(sums, self._lengths, strict=True)
        )
        return _SCALE * total / (ORDERS * references)


def _bigrams(length: int) -> int:
    return max(0, length - 1)
