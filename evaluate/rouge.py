"""ROUGE-L (Lin, 2004) with the settings of the COCO evaluation: beta = 1.2, best of references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluate.pairs import Id, paired

_BETA_SQUARED = 1.2**2


def rouge_l(
    references: Mapping[Id, Sequence[str]], candidates: Mapping[Id, str]
) -> tuple[float, list[float]]:
    """ROUGE-L of tokenised strings: the mean over images, and the value of each image.

    Words are cut at single spaces only, so an empty string is one empty word: two empty captions
    score 1, as in the official program. Raises EvaluateError when the ids differ.
    """
    scores = [
        _score([text.split(" ") for text in texts], candidate.split(" "))
        for texts, candidate in paired(references, candidates)
    ]
    return (sum(scores) / len(scores) if scores else 0.0), scores


def _score(references: Sequence[Sequence[str]], candidate: Sequence[str]) -> float:
    lengths = [_common_subsequence(reference, candidate) for reference in references]
    # The best precision and the best recall may come from different references.
    precision = max(lengths) / len(candidate)
    recall = max(n / len(r) for n, r in zip(lengths, references, strict=True))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + _BETA_SQUARED) * precision * recall / (recall + _BETA_SQUARED * precision)


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, one row of the table per word of `a`.

    A row is kept as a bit set over `b`: bit j is 0 where the row's value grows at word j
    (Hyyro, 2004), so a row costs a few integer operations whatever the length of `b`.
    """
    where: dict[str, int] = {}
    for position, word in enumerate(b):
        where[word] = where.get(word, 0) | 1 << position
    full = (1 << len(b)) - 1
    row = full
    for word in a:
        matches = row & where.get(word, 0)
        row = (row + matches | row - matches) & full
    return len(b) - row.bit_count()
