"""CIDEr-D: against the formula written out, degenerate inputs, fixed tables and rewards."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluate.cider import CiderReward, DocumentFrequency, TokenStyle, cider_d, cider_warnings
from evaluate.errors import EvaluateError

REFERENCES = {
    1: ["a man rides a wave", "a surfer on a big wave"],
    2: ["a dog runs", "the dog runs on grass"],
    3: ["two cats sleep on a bed", "cats on a bed"],
}
CANDIDATES = {1: "a man on a wave", 2: "the dog runs", 3: "a cat"}


def written_out(references: dict[int, list[str]], candidates: dict[int, str]) -> list[float]:
    """The formula of CIDEr-D, term by term."""

    def ngrams(text: str, n: int) -> Counter[tuple[str, ...]]:
        words = text.split()
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    def weights(text: str, n: int) -> dict[tuple[str, ...], float]:
        found = {}
        for ngram, count in ngrams(text, n).items():
            documents = sum(any(ngram in ngrams(t, n) for t in ts) for ts in references.values())
            found[ngram] = count * (math.log(len(references)) - math.log(max(1, documents)))
        return found

    scores = []
    for image, texts in references.items():
        total = 0.0
        for text in texts:
            for n in (1, 2, 3, 4):
                here, there = weights(candidates[image], n), weights(text, n)
                norms = math.hypot(*here.values()) * math.hypot(*there.values())
                product = sum(min(here[g], there[g]) * there[g] for g in here if g in there)
                lengths = [max(0, len(t.split()) - 1) for t in (candidates[image], text)]
                penalty = math.exp(-((lengths[0] - lengths[1]) ** 2) / (2 * 6.0**2))
                total += penalty * (product / norms if norms else product) / 4
        scores.append(10 * total / len(texts))
    return scores


def test_equal_to_the_formula() -> None:
    corpus, per_image = cider_d(REFERENCES, CANDIDATES)
    assert per_image == pytest.approx(written_out(REFERENCES, CANDIDATES), abs=1e-12)
    assert corpus == pytest.approx(sum(per_image) / 3)


TEXTS = st.lists(st.sampled_from("abcde"), max_size=9).map(" ".join)


@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=3), TEXTS), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_equal_to_the_formula_on_anything(images: list[tuple[list[str], str]]) -> None:
    references = {k: refs for k, (refs, _) in enumerate(images)}
    candidates = {k: candidate for k, (_, candidate) in enumerate(images)}
    _, per_image = cider_d(references, candidates)
    assert per_image == pytest.approx(written_out(references, candidates), abs=1e-9)


def test_degenerate_inputs_score_zero_and_say_why() -> None:
    assert cider_d({1: ["", " "], 2: [""]}, {1: "a", 2: ""}) == (0, [0, 0])
    assert "empty" in cider_warnings({1: ["", " "], 2: [""]})[0]
    assert cider_d({1: ["a b"]}, {1: "a b"}) == (0, [0])
    assert "one image" in cider_warnings({1: ["a b"]})[0]
    assert cider_warnings(REFERENCES) == []
    assert cider_d({}, {}) == (0, [])


def test_one_image_scores_with_a_fixed_table() -> None:
    table = DocumentFrequency.build(REFERENCES)
    _, expected = cider_d(REFERENCES, CANDIDATES)
    _, found = cider_d({1: REFERENCES[1]}, {1: CANDIDATES[1]}, table)
    assert found == pytest.approx(expected[:1])


@pytest.mark.parametrize("document", ["image", "caption"])
def test_rewards_equal_scores_with_the_same_table(document: str) -> None:
    table = DocumentFrequency.build(REFERENCES, document)  # type: ignore[arg-type]
    _, expected = cider_d(REFERENCES, CANDIDATES, table)
    ids = [3, 1, 2, 1]
    rewards = CiderReward(REFERENCES, table).reward(ids, [CANDIDATES[i].split() for i in ids])
    assert rewards.dtype == np.float64
    assert rewards == pytest.approx([expected[i - 1] for i in ids])
    assert rewards.max() > 0


def test_a_cut_caption_has_no_end_of_sentence() -> None:
    style = TokenStyle(eos="0", ids={"a": "1", "b": "2"}, unknown="3")
    assert style.tokens(["a", "zzz"]) == ["1", "3", "0"]
    assert style.tokens(["a", "b", "a"], 3) == ["1", "2", "1"]
    assert style.tokens(["a", "b"], 3) == ["1", "2", "0"]
    assert style.tokens(["a", "b", "a", "b"], 3) == ["1", "2", "1"]


def test_a_reward_for_the_end_of_a_sentence() -> None:
    table = DocumentFrequency.build(REFERENCES, eos="0")
    reward = CiderReward(REFERENCES, table, eos=True)
    whole, broken = reward.reward([2, 2], [["the", "dog", "runs", "on", "grass"], ["the", "dog"]])
    assert whole > broken
    with pytest.raises(EvaluateError, match="with an end-of-sentence"):
        CiderReward(REFERENCES, table, eos=False)


def test_wrong_calls_are_named() -> None:
    table = DocumentFrequency.build(REFERENCES)
    with pytest.raises(EvaluateError, match="2 ids for 1 captions"):
        CiderReward(REFERENCES, table).reward([1, 2], [["a"]])
    with pytest.raises(EvaluateError, match="image 9 has no references"):
        CiderReward(REFERENCES, table).reward([9], [["a"]])
    with pytest.raises(EvaluateError, match="max_length is 0"):
        CiderReward(REFERENCES, table, max_length=0)
