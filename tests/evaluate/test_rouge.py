"""ROUGE-L by hand-made examples and against the plain table of subsequences."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluate.rouge import rouge_l


def value(candidate: str, *references: str) -> float:
    corpus, per_image = rouge_l({1: list(references)}, {1: candidate})
    assert [corpus] == per_image
    return corpus


def plain_length(a: list[str], b: list[str]) -> int:
    """Longest common subsequence by the table."""
    rows = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            rows[i + 1][j + 1] = rows[i][j] + 1 if x == y else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


def test_copies_and_strangers() -> None:
    assert value("a b c", "a b c") == 1
    assert value("a b c", "x y z") == 0


def test_precision_and_recall_may_come_from_different_references() -> None:
    # best precision 1 with the long reference, best recall 1 with the short one
    assert value("a b", "a b c d", "a") == 1


def test_empty_captions_are_one_empty_word() -> None:
    assert value("", "") == 1
    assert value("", "a") == 0
    assert value("a", "") == 0


def test_corpus_is_the_mean() -> None:
    corpus, per_image = rouge_l({1: ["a"], 2: ["b"]}, {1: "a", 2: "x"})
    assert (corpus, per_image) == (0.5, [1, 0])


WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(WORDS, WORDS)
@settings(deadline=None)
def test_equal_to_the_formula_over_the_plain_table(a: list[str], b: list[str]) -> None:
    common = plain_length(a, b)
    precision, recall = common / len(a), common / len(b)
    expected = (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision) if common else 0.0
    assert value(" ".join(a), " ".join(b)) == pytest.approx(expected)
