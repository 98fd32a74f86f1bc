"""BLEU by hand-made examples."""

from __future__ import annotations

import math

import pytest

from evaluate.bleu import bleu
from evaluate.errors import EvaluateError


def test_a_copy_of_a_reference_scores_one() -> None:
    corpus, per_image = bleu({1: ["a cat sits here now", "x"]}, {1: "a cat sits here now"})
    assert corpus == pytest.approx([1, 1, 1, 1], abs=1e-8)
    assert [values[0] for values in per_image] == corpus


def test_hits_are_clipped_by_the_richest_reference() -> None:
    corpus, _ = bleu({1: ["the cat the", "the dog sits"]}, {1: "the the the"})
    assert corpus[0] == pytest.approx(2 / 3)
    assert corpus[1] == pytest.approx(0, abs=1e-6)


def test_a_tie_in_length_takes_the_shorter_reference() -> None:
    corpus, _ = bleu({1: ["a b", "a b c d"]}, {1: "a b c"})
    assert corpus[0] == pytest.approx(1)


def test_short_candidates_pay() -> None:
    corpus, _ = bleu({1: ["a b c d"]}, {1: "a b"})
    assert corpus[0] == pytest.approx(math.exp(1 - 4 / 2))


def test_corpus_values_come_from_summed_counts() -> None:
    corpus, per_image = bleu({1: ["a b c"], 2: ["a"]}, {1: "a b c", 2: "z"})
    assert per_image[0] == pytest.approx([1, 0], abs=1e-6)
    assert corpus[0] == pytest.approx(3 / 4)


def test_empty_captions_score_zero() -> None:
    corpus, per_image = bleu({1: [""], 2: ["a"]}, {1: "", 2: ""})
    assert corpus == [0, 0, 0, 0]
    assert per_image == [[0, 0]] * 4


def test_ids_on_one_side_only_are_named() -> None:
    with pytest.raises(EvaluateError, match="'b'.*no candidate.*'c'.*no references"):
        bleu({"a": ["x"], "b": ["x"]}, {"a": "x", "c": "x"})
    with pytest.raises(EvaluateError, match="image 1: references are"):
        bleu({1: []}, {1: "x"})
    with pytest.raises(EvaluateError, match="image 1: candidate is"):
        bleu({1: ["x"]}, {1: ["x"]})  # type: ignore[dict-item]
