"""How varied captions are: counts by hand, and the warning on collapse."""

from __future__ import annotations

import pytest

from evaluate.bleu import bleu
from evaluate.diversity import diversity
from evaluate.errors import EvaluateError


def test_counts() -> None:
    found = diversity(
        {"1": "a man rides", "2": "a man rides", "3": "a dog", "4": ""},
        training={"a man rides", "a cat on a mat"},
    )
    assert (found.captions, found.distinct, found.empty) == (4, 3, 1)
    assert (found.commonest, found.commonest_share) == ("a man rides", 0.5)
    assert found.mean_length == pytest.approx(8 / 4)
    assert (found.vocabulary, found.training_vocabulary) == (4, 6)
    assert found.novel == pytest.approx(1 / 4)  # an empty caption is not novel
    assert found.mbleu is None and found.nbest is None
    assert found.to_dict()["distinct"] == 3


def test_mbleu_of_copies_is_one_and_of_strangers_nothing() -> None:
    captions = {"1": "a man rides a horse"}
    copies = diversity(captions, nbest={"1": ["a man rides a horse"] * 3})
    assert copies.nbest == 3 and copies.mbleu == pytest.approx([1, 1, 1, 1])
    strangers = diversity(captions, nbest={"1": ["a b c d e", "f g h i j"]})
    assert strangers.mbleu == pytest.approx([0, 0, 0, 0], abs=1e-3)


def test_mbleu_is_the_mean_over_ranks_of_each_against_the_rest() -> None:
    nbest = {"1": ["a man on a horse", "a man rides a horse"], "2": ["a dog", "a dog runs"]}
    first, _ = bleu(
        {"1": [nbest["1"][1]], "2": [nbest["2"][1]]}, {i: c[0] for i, c in nbest.items()}
    )
    second, _ = bleu(
        {"1": [nbest["1"][0]], "2": [nbest["2"][0]]}, {i: c[1] for i, c in nbest.items()}
    )
    found = diversity({"1": "x"}, nbest=nbest)
    assert found.mbleu == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)])


def test_single_captions_give_no_mbleu() -> None:
    assert diversity({"1": "a"}, nbest={"1": ["a"]}).mbleu is None
    uneven = diversity({"1": "a"}, nbest={"1": ["a b c d"] * 2, "2": ["a b c d"]})
    assert uneven.mbleu == pytest.approx([1, 1, 1, 1])


def test_collapse_is_warned_of() -> None:
    same = {str(i): "a man" if i < 3 else f"caption {i}" for i in range(20)}
    (warning,) = diversity(same).warnings
    assert '15.0 % of 20 images get "a man"' in warning and "10 %" in warning
    varied = {str(i): "a man" if i < 2 else f"caption {i}" for i in range(20)}
    assert diversity(varied).warnings == []


def test_few_images_are_collapsed_where_nearly_all_have_one_caption() -> None:
    def warnings(images: int, same: int) -> list[str]:
        captions = {str(i): "a man" if i < same else f"caption {i}" for i in range(images)}
        return diversity(captions).warnings

    assert warnings(4, 4) == warnings(5, 4) == warnings(19, 15) == []
    (five,), (nineteen,) = warnings(5, 5), warnings(19, 16)
    assert '100.0 % of 5 images get "a man" (warned above 80 %)' in five
    assert "84.2 % of 19 images" in nineteen


def test_no_captions() -> None:
    with pytest.raises(EvaluateError, match="no captions"):
        diversity({})
