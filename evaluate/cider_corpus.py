"""CIDEr-D of many images at once, n-grams as numbers and images as columns of arrays.

The same formula as `evaluate.cider.CiderReward`, which suits a few captions at a time; this way
is several times faster for a whole test set. Shapes: T tokens of all captions together, P
different n-grams of each caption together, G different n-grams of one order, C captions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from evaluate.document_frequency import DocumentFrequency
from evaluate.ngrams import ORDERS


@dataclass(frozen=True)
class _Order:
    """The n-grams of one order in every caption."""

    caption: np.ndarray  # (P,) int64: which caption, ascending
    ngram: np.ndarray  # (P,) int64: which n-gram, ascending in each caption
    count: np.ndarray  # (P,) float64: how often it is there
    last: np.ndarray  # (G, 2) int64: each n-gram as the n-gram before its last word, and that word


def corpus_cider(
    references: Sequence[Sequence[Sequence[str]]],
    candidates: Sequence[Sequence[str]],
    table: DocumentFrequency | None,
    sigma: float,
) -> np.ndarray:
    """CIDEr-D per image, before the factor 10: float64 (images,).

    `references` and `candidates` hold tokens, by image. Without a table the document frequencies
    are those of the images at hand.
    """
    sizes = np.array([len(captions) for captions in references])  # (images,)
    owner = np.repeat(np.arange(len(sizes)), sizes)  # (references,): the image of each
    captions = [*chain.from_iterable(references), *candidates]  # references first
    lengths = np.array([len(tokens) for tokens in captions])  # (C,)
    images = np.concatenate([owner, np.arange(len(candidates))])  # (C,)
    words, orders = _orders(captions, lengths)
    total = np.zeros(len(owner))  # (references,): sum over orders
    names: list[str] = []
    for order, found in enumerate(orders):
        if table is None:
            weight = _weights_here(found, images, len(owner), len(sizes))  # (G,)
        else:
            names = (
                words if not order else [f"{names[a]} {words[b]}" for a, b in found.last.tolist()]
            )
            weight = np.array([table.weight(name) for name in names])  # (G,)
        total += _cosines(found, weight, images, len(owner))
    bigrams = np.maximum(lengths - 1, 0)  # (C,): what a length is here
    gap = bigrams[len(owner) + owner] - bigrams[: len(owner)]  # (references,)
    total *= np.exp(-(gap**2) / (2 * sigma**2))
    means: np.ndarray = np.bincount(owner, total, len(sizes)) / (ORDERS * sizes)  # (images,)
    return means


def _orders(
    captions: Sequence[Sequence[str]], lengths: np.ndarray
) -> tuple[list[str], Iterator[_Order]]:
    """Every word by its number, and the n-grams of orders 1 to 4 by theirs."""
    numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
    every = chain.from_iterable(captions)
    tokens = np.fromiter((numbers[t] for t in every), np.int64, int(lengths.sum()))  # (T,)
    caption = np.repeat(np.arange(len(captions)), lengths)  # (T,)
    return list(numbers), _grown(tokens, caption, len(numbers))


def _grown(tokens: np.ndarray, caption: np.ndarray, words: int) -> Iterator[_Order]:
    starts, ngram = np.arange(len(tokens)), tokens  # (n-grams,): where each begins, and which
    last = np.stack([np.zeros(words, np.int64), np.arange(words)], axis=1)  # (G, 2)
    for order in range(ORDERS):
        if order:
            # An n-gram is the shorter one that starts at the same token, and the word behind it.
            ends = np.minimum(starts + order, len(tokens) - 1)  # (n-grams,)
            whole = (ends - starts == order) & (caption[ends] == caption[starts])
            codes = ngram[whole] * words + tokens[ends[whole]]  # (n-grams,), those of this order
            different, ngram = np.unique(codes, return_inverse=True)  # (G,), (n-grams,)
            last = np.stack(np.divmod(different, max(1, words)), axis=1)  # (G, 2)
            starts = starts[whole]
        size = max(1, len(last))
        keys, count = np.unique(caption[starts] * size + ngram, return_counts=True)  # (P,) each
        where, which = np.divmod(keys, size)
        yield _Order(where, which, count.astype(np.float64), last)


def _weights_here(found: _Order, images: np.ndarray, references: int, total: int) -> np.ndarray:
    """log N - log df of each n-gram (G,), documents being the images with their references."""
    size = max(1, len(found.last))
    ours = found.caption < references  # (P,)
    keys = np.unique(images[found.caption[ours]] * size + found.ngram[ours])
    documents = np.bincount(keys % size, minlength=size)  # (G,)
    weights: np.ndarray = np.log(total) - np.log(np.maximum(1, documents))  # (G,)
    return weights


def _cosines(found: _Order, weight: np.ndarray, images: np.ndarray, references: int) -> np.ndarray:
    """Clipped cosine of each reference and its image's candidate: float64 (references,)."""
    size, captions = max(1, len(found.last)), len(images)
    value = found.count * weight[found.ngram]  # (P,)
    norm = np.sqrt(np.bincount(found.caption, value**2, captions))  # (C,)
    key = images[found.caption] * size + found.ngram  # (P,)
    split = int(np.searchsorted(found.caption, references))  # references' n-grams come first
    own, own_value = key[split:], value[split:]  # candidates' n-grams, keys ascending
    if not len(own):
        return np.zeros(references)
    place = np.minimum(np.searchsorted(own, key[:split]), len(own) - 1)  # (split,)
    shared = own[place] == key[:split]
    there = value[:split][shared]
    product = np.minimum(own_value[place[shared]], there) * there
    sums = np.bincount(found.caption[:split][shared], product, references)  # (references,)
    scale = norm[references + images[:references]] * norm[:references]  # (references,)
    cosines: np.ndarray = np.where(scale > 0, sums / np.where(scale > 0, scale, 1), sums)
    return cosines
