"""BLEU-1 to BLEU-4 (Papineni et al., ACL 2002) with the counting rules of the COCO evaluation.

Reference length: the reference closest in length to the candidate, the shorter one on a tie.
No smoothing, but the two epsilons of the COCO code, which decide the value of hopeless captions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from evaluate.pairs import Id, paired

ORDERS = 4
_TINY = 1e-15  # added to hits and to the candidate's length
_SMALL = 1e-9  # added to guesses and to the reference's length

NgramCounts = list[Counter[tuple[str, ...]]]


def bleu(
    references: Mapping[Id, Sequence[str]], candidates: Mapping[Id, str]
) -> tuple[list[float], list[list[float]]]:
    """BLEU-1..4 of tokenised strings: corpus values and values per image.

    Returns `(corpus, per_image)`: `corpus[k]` is BLEU-(k+1) from the summed counts (not the mean
    of images), `per_image[k]` the list of that order, images in the order of `references`.
    Raises EvaluateError when the ids differ.
    """
    per_image: list[list[float]] = [[] for _ in range(ORDERS)]
    total = _Counts()
    for texts, candidate in paired(references, candidates):
        counts = _image_counts([t.split() for t in texts], candidate.split())
        total.add(counts)
        for order, value in enumerate(counts.scores()):
            per_image[order].append(value)
    return total.scores(), per_image


class _Counts:
    """Hits and guesses per order, and the two lengths; of one image, or summed over images."""

    def __init__(self) -> None:
        self.hits = [0] * ORDERS
        self.guesses = [0] * ORDERS
        self.candidate_length = 0
        self.reference_length = 0

    def add(self, other: _Counts) -> None:
        self.hits = [a + b for a, b in zip(self.hits, other.hits, strict=True)]
        self.guesses = [a + b for a, b in zip(self.guesses, other.guesses, strict=True)]
        self.candidate_length += other.candidate_length
        self.reference_length += other.reference_length

    def scores(self) -> list[float]:
        """Geometric means of the precisions up to each order, times the brevity penalty."""
        ratio = (self.candidate_length + _TINY) / (self.reference_length + _SMALL)
        penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
        scores, product = [], 1.0
        for order in range(ORDERS):
            product *= (self.hits[order] + _TINY) / (self.guesses[order] + _SMALL)
            scores.append(penalty * product ** (1 / (order + 1)))
        return scores


def _image_counts(references: Sequence[Sequence[str]], candidate: Sequence[str]) -> _Counts:
    counts = _Counts()
    length = len(candidate)
    counts.candidate_length = length
    counts.reference_length = min((len(r) for r in references), key=lambda n: (abs(n - length), n))
    counts.guesses = [max(0, length - order) for order in range(ORDERS)]
    most = _ngrams(())
    for reference in references:
        for order, ngrams in enumerate(_ngrams(reference)):
            most[order] |= ngrams  # the union of counters keeps the larger count
    for order, ngrams in enumerate(_ngrams(candidate)):
        counts.hits[order] = (ngrams & most[order]).total()
    return counts


def _ngrams(tokens: Sequence[str]) -> NgramCounts:
    """Counters of the n-grams of order 1 to 4."""
    return [
        Counter(zip(*(tokens[start:] for start in range(order)), strict=False))
        for order in range(1, ORDERS + 1)
    ]
