"""BLEU-1 to BLEU-4 (Papineni et al., ACL 2002) with the counting rules of the COCO evaluation.

Reference length: the reference closest in length to the candidate, the shorter one on a tie.
No smoothing, but the two epsilons of the COCO code, which decide the value of hopeless captions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from evaluate.pairs import Id, paired

ORDERS = 4
COUNTS = 2 * ORDERS + 2  # hits and guesses of each order, candidate length, reference length
_TINY = 1e-15  # added to hits and to the candidate's length
_SMALL = 1e-9  # added to guesses and to the reference's length


def bleu(
    references: Mapping[Id, Sequence[str]], candidates: Mapping[Id, str]
) -> tuple[list[float], list[list[float]]]:
    """BLEU-1..4 of tokenised strings: corpus values and values per image.

    Returns `(corpus, per_image)`: `corpus[k]` is BLEU-(k+1) from the summed counts (not the mean
    of images), `per_image[k]` the list of that order, images in the order of `references`.
    Raises EvaluateError when the ids differ.
    """
    counts = bleu_counts(references, candidates)
    return bleu_of_counts(counts.sum(axis=0)).tolist(), bleu_of_counts(counts).T.tolist()


def bleu_counts(references: Mapping[Id, Sequence[str]], candidates: Mapping[Id, str]) -> np.ndarray:
    """What BLEU counts in each image: float64 (images, 10), in the order of `references`.

    A row holds the clipped hits of orders 1 to 4, the guesses of orders 1 to 4, the length of the
    candidate and that of the closest reference. Rows add up: BLEU of any set of images is
    `bleu_of_counts` of the sum of its rows. Raises EvaluateError when the ids differ.
    """
    rows = [
        _image_counts([text.split() for text in texts], candidate.split())
        for texts, candidate in paired(references, candidates)
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, COUNTS)  # (images, 10)


def bleu_of_counts(counts: np.ndarray) -> np.ndarray:
    """BLEU-1..4 of counts (..., 10): geometric means of precisions times the brevity penalty.

    Returns float64 (..., 4).
    """
    hits, guesses = counts[..., :ORDERS], counts[..., ORDERS : 2 * ORDERS]  # (..., 4) each
    products = np.cumprod((hits + _TINY) / (guesses + _SMALL), axis=-1)  # (..., 4)
    means = products ** (1 / np.arange(1, ORDERS + 1))  # (..., 4)
    ratio = (counts[..., -2] + _TINY) / (counts[..., -1] + _SMALL)  # (...)
    penalty = np.exp(np.minimum(0.0, 1 - 1 / ratio))  # (...)
    bleus: np.ndarray = means * penalty[..., None]  # (..., 4)
    return bleus


def _image_counts(references: Sequence[Sequence[str]], candidate: Sequence[str]) -> list[int]:
    length = len(candidate)
    closest = min((len(r) for r in references), key=lambda n: (abs(n - length), n))
    hits = [_hits(references, candidate, order) for order in range(1, ORDERS + 1)]
    guesses = [max(0, length - order) for order in range(ORDERS)]
    return [*hits, *guesses, length, closest]


def _hits(references: Sequence[Sequence[str]], candidate: Sequence[str], order: int) -> int:
    """The candidate's n-grams found in references, each at most as often as in one of them."""
    own = Counter(_ngrams(candidate, order))
    most: dict[tuple[str, ...], int] = {}
    for reference in references:
        found: dict[tuple[str, ...], int] = {}
        for ngram in _ngrams(reference, order):
            if ngram in own:
                found[ngram] = found.get(ngram, 0) + 1
        for ngram, count in found.items():
            most[ngram] = max(count, most.get(ngram, 0))
    return sum(min(count, own[ngram]) for ngram, count in most.items())


def _ngrams(tokens: Sequence[str], order: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(order)), strict=False)
