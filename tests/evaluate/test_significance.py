"""Bootstrap intervals and the paired test against brute force and textbook values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evaluate import significance
from evaluate.bleu import bleu, bleu_counts, bleu_of_counts
from evaluate.errors import EvaluateError
from evaluate.significance import Summed, compare, intervals, mean_of


def bleu_metric(references: dict[int, list[str]], captions: dict[int, str]) -> Summed:
    return Summed(
        columns=("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"),
        rows=bleu_counts(references, captions),
        value=lambda sums, images: bleu_of_counts(sums),
    )


def captions_of(seed: int, images: int) -> tuple[dict[int, list[str]], dict[int, str]]:
    random = np.random.default_rng(seed)
    words = "a man dog on red bus the street rides two".split()

    def text() -> str:
        return " ".join(random.choice(words, size=int(random.integers(4, 9))))

    references = {i: [text(), text()] for i in range(images)}
    return references, {i: text() for i in range(images)}


def test_bleu_of_a_resample_is_the_corpus_bleu_of_the_drawn_images() -> None:
    references, captions = captions_of(0, 30)
    found = intervals([bleu_metric(references, captions)], resamples=200, seed=3)
    drawn = np.random.default_rng(3).integers(0, 30, size=(200, 30))
    by_hand = []
    for images in drawn:
        corpus, _ = bleu(
            {k: references[i] for k, i in enumerate(images)},
            {k: captions[i] for k, i in enumerate(images)},
        )
        by_hand.append(corpus)
    for order in range(4):
        low, high = np.percentile([corpus[order] for corpus in by_hand], [2.5, 97.5])
        interval = found[f"Bleu_{order + 1}"]
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12)


def test_interval_of_a_mean_is_the_textbook_one() -> None:
    values = np.random.default_rng(1).normal(0.5, 0.2, size=2000)
    found = intervals([mean_of("M", values.tolist())], resamples=2000)["M"]
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_p_is_that_of_all_exchanges() -> None:
    first = np.array([0.1, 0.4, 0.3, 0.2, 0.6, 0.5, 0.3, 0.2, 0.4])
    second = first + np.array([0.2, -0.1, 0.15, 0.05, -0.05, 0.3, 0.1, -0.02, 0.12])
    signs = np.array(list(itertools.product([1, -1], repeat=9)))
    chance = np.abs((signs * (second - first)).mean(axis=1))
    exact = (chance >= abs((second - first).mean()) - 1e-12).mean()
    found = compare([mean_of("M", first)], [mean_of("M", second)], resamples=20_000)["M"]
    assert found.value == pytest.approx((second - first).mean())
    assert found.p == pytest.approx(exact, abs=0.012)
    assert found.low < found.value < found.high


def test_small_chunks_change_nothing_but_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).random(50).tolist()
    whole = intervals([mean_of("M", values)], resamples=4000)["M"]
    monkeypatch.setattr(significance, "_CHUNK", 500)  # ten resamples at a time
    parts = intervals([mean_of("M", values)], resamples=4000)["M"]
    width = whole.high - whole.low
    assert parts.low == pytest.approx(whole.low, abs=0.1 * width)
    assert parts.high == pytest.approx(whole.high, abs=0.1 * width)


def test_a_system_does_not_differ_from_itself() -> None:
    references, captions = captions_of(4, 20)
    metric = bleu_metric(references, captions)
    for found in compare([metric], [metric], resamples=100).values():
        assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_a_clear_difference_reaches_the_smallest_p() -> None:
    references, captions = captions_of(5, 60)
    perfect = {i: texts[0] for i, texts in references.items()}
    found = compare(
        [bleu_metric(references, captions)], [bleu_metric(references, perfect)], resamples=99
    )
    for difference in found.values():
        assert difference.p == pytest.approx(0.01)
        assert 0 < difference.low < difference.value < difference.high


def test_only_columns_of_both_are_compared() -> None:
    one, two = mean_of("ROUGE_L", [0.1, 0.2]), mean_of("METEOR", [0.3, 0.5])
    assert set(compare([one, two], [one], resamples=10)) == {"ROUGE_L"}
    assert set(compare([two, one], [one, two], resamples=10)) == {"ROUGE_L", "METEOR"}
    assert compare([one], [two], resamples=10) == {}


def test_same_seed_same_answer() -> None:
    metric = mean_of("M", [0.1, 0.5, 0.2, 0.9])
    assert intervals([metric], seed=7) == intervals([metric], seed=7)
    assert intervals([metric], seed=7) != intervals([metric], seed=8)


def test_one_image_has_no_interval() -> None:
    metric = mean_of("M", [0.5])
    assert intervals([metric]) == {} and compare([metric], [metric]) == {}
    assert intervals([mean_of("M", [0.5, 0.6])], resamples=0) == {}
    assert intervals([]) == {}


def test_different_images_are_refused() -> None:
    with pytest.raises(EvaluateError, match=r"metrics over \[2, 3\] images.*--subset"):
        compare([mean_of("M", [0.1, 0.2])], [mean_of("M", [0.1, 0.2, 0.3])])
