"""Constrained beam search against brute force, and against beam search where nothing is asked."""

from __future__ import annotations

import itertools

import pytest
import torch

from caption.constrained import Constrained, Constraint, Machine, constrained_beam_search
from caption.decode import beam_search
from caption.errors import CaptionError
from caption.vocabulary import EOS, PAD
from tests.caption.test_decode import Prefixes, Table

CPU = torch.device("cpu")
WORDS = 8  # four specials, then 4 to 7


def search(
    table: Table,
    constraints: list[list[Constraint]],
    beams: int,
    length: int,
    keep: int | None = None,
    satisfy: int = 2,
) -> Constrained:
    machines = [Machine.of(each) for each in constraints]
    return constrained_beam_search(
        table.step, table.start(), machines, beams, length, CPU, keep, satisfy
    )


def holds(words: tuple[int, ...], constraint: Constraint) -> bool:
    """Whether the words hold one of the alternatives, looked for at every place."""
    return any(
        words[place : place + len(phrase)] == tuple(phrase)
        for phrase in constraint
        for place in range(len(words))
    )


def brute_force(
    table: Table, image: int, constraints: list[Constraint], length: int, satisfy: int
) -> list[tuple[int, float, tuple[int, ...]]]:
    """Every caption: the constraints that count, log-probability, words; in the result's order."""
    wanted = min(satisfy, len(constraints))
    found = [
        (min(wanted, sum(holds(words, each) for each in constraints)), score, words)
        for score, words in table.all_captions(image, length)
    ]
    return sorted(found, reverse=True)


CASES: dict[str, list[Constraint]] = {
    "none": [],
    "a word": [[(5,)]],
    "a word or its plural": [[(5,), (6,)]],
    "two words": [[(5,)], [(7,)]],
    "three words": [[(4,)], [(5,), (6,)], [(7,)]],
    "a shared word": [[(5,), (6,)], [(5,), (7,)]],
    "a phrase": [[(4, 5)]],
    "a phrase that repeats itself": [[(4, 4, 5)]],
    "a phrase and its end": [[(4, 5)], [(5,)]],
    "a phrase inside another": [[(4, 5, 6)], [(5, 6), (5, 7)]],
    "a phrase or a word": [[(4, 5), (6,)], [(5, 4)]],
}


@pytest.mark.parametrize("satisfy", [1, 2, 3])
@pytest.mark.parametrize("name", list(CASES))
def test_a_wide_beam_finds_what_brute_force_finds(name: str, satisfy: int) -> None:
    table, length = Table(images=1, words=WORDS, seed=len(name)), 3
    found = search(table, [CASES[name]], WORDS**2, length, keep=12, satisfy=satisfy)
    wanted = brute_force(table, 0, CASES[name], length, satisfy)
    for place, (count, score, words) in enumerate(wanted[:12]):
        row = found.tokens[0, place].tolist()
        assert tuple(row[: len(words)]) == words and set(row[len(words) :]) <= {PAD}
        assert float(found.scores[0, place]) == pytest.approx(score, abs=1e-4)
        assert float(found.log_probs[0, place].sum()) == pytest.approx(score, abs=1e-4)
        assert min(int(found.satisfied[0, place]), satisfy) == count


@pytest.mark.parametrize("keep", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_without_constraints_it_is_beam_search(seed: int, keep: int) -> None:
    table = Table(images=3, words=6, seed=seed)
    wanted = beam_search(table.step, table.start(), 3, 4, 7, CPU, keep)
    found = search(table, [[], [], []], 4, 7, keep)
    assert torch.equal(found.tokens, wanted.tokens)
    assert torch.equal(found.scores, wanted.scores)
    assert torch.equal(found.log_probs, wanted.log_probs)
    assert not found.satisfied.any()


def test_more_beams_than_words_is_beam_search_too() -> None:
    table = Table(images=1, words=5, seed=1)
    wanted = beam_search(table.step, table.start(), 1, 40, 2, CPU)
    found = search(table, [[]], 40, 2)
    real = ~wanted.scores.isneginf()
    assert torch.equal(found.scores, wanted.scores)
    assert torch.equal(found.tokens[real], wanted.tokens[real])


@pytest.mark.parametrize("beams", [1, 3])
def test_images_of_a_batch_are_decoded_as_alone(beams: int) -> None:
    cases = [[], CASES["three words"], CASES["a phrase or a word"], CASES["a word"]]
    table = Table(images=len(cases), words=WORDS, seed=3)
    together = search(table, cases, beams, 6)
    plain = beam_search(table.step, table.start(), len(cases), beams, 6, CPU)
    length = together.tokens.shape[-1]
    first = plain.tokens[0].tolist()
    assert [row[: len(first[0])] for row in together.tokens[0].tolist()] == first
    for image, case in enumerate(cases):
        machine = [Machine.of(case)]
        start = Prefixes([(image, ())])
        alone = constrained_beam_search(table.step, start, machine, beams, 6, CPU)
        padded = torch.full((beams, length), PAD)
        padded[:, : alone.tokens.shape[-1]] = alone.tokens[0]
        assert torch.equal(together.tokens[image], padded)
        torch.testing.assert_close(together.scores[image], alone.scores[0])
        assert torch.equal(together.satisfied[image], alone.satisfied[0])


@pytest.mark.parametrize("seed", range(5))
def test_a_narrow_beam_holds_the_constraints_and_stops_no_later(seed: int) -> None:
    table = Table(images=2, words=WORDS, seed=seed)
    cases = [CASES["three words"], CASES["two words"]]
    every, best = search(table, cases, 3, 8), search(table, cases, 3, 8, keep=1)
    assert torch.equal(every.scores[:, 0], best.scores[:, 0])
    assert best.tokens.shape[-1] <= every.tokens.shape[-1]
    for image, case in enumerate(cases):
        words = tuple(best.tokens[image, 0].tolist())
        assert sum(holds(words, each) for each in case) == int(best.satisfied[image, 0]) >= 2


def test_constraints_that_do_not_fit_are_left_for_captions_with_fewer() -> None:
    table = Table(images=1, words=WORDS, seed=2)
    found = search(table, [[[(4, 5, 6)], [(7,)]]], 4, 2, keep=4)
    assert found.satisfied[0].tolist() == [1, 1, 1, 1]
    assert all(7 in row for row in found.tokens[0].tolist())


def test_every_caption_of_two_words_is_found_once() -> None:
    table = Table(images=1, words=WORDS, seed=4)
    found = search(table, [CASES["a phrase or a word"]], 80, 2)
    real = found.tokens[0][~found.scores[0].isneginf()].tolist()
    every = [(EOS, PAD), *itertools.product([w for w in range(WORDS) if w != EOS], range(WORDS))]
    assert len(real) == len(every) and {tuple(row) for row in real} == set(every)


def test_single_words_make_the_subsets_and_phrases_the_ways_to_them() -> None:
    assert len(Machine.of([[(5,), (6,)], [(7,)], [(4,)]]).others) == 8
    assert Machine.of([]).others == (0,) and Machine.of([]).words == ()
    phrase = Machine.of([[(4, 5, 6)]])
    assert phrase.satisfied == (0, 0, 0, 1) and phrase.others == (0, 0, 0, 3)


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        ([[(4,)], [(5,)], [(6,)], [(7,)]], "4 constraints for one image, wanted 3"),
        ([[]], "a constraint without words"),
        ([[()]], "a constraint without words"),
        ([[(EOS,)]], "holds one of <unk> <pad> <bos> <eos>"),
    ],
)
def test_constraints_that_cannot_be(constraints: list[Constraint], said: str) -> None:
    with pytest.raises(CaptionError, match=said):
        Machine.of(constraints)


def test_impossible_sizes_and_words_are_refused() -> None:
    table = Table(images=1, words=WORDS, seed=0)
    with pytest.raises(CaptionError, match="beam size 0"):
        search(table, [[]], 0, 3)
    with pytest.raises(CaptionError, match="word 8 of a vocabulary of 8"):
        search(table, [[[(8,)]]], 2, 3)
