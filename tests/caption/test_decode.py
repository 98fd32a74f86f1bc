"""Beam search against brute force, and what decoders promise."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

from caption.decode import beam_search, greedy, sample
from caption.errors import CaptionError
from caption.vocabulary import BOS, EOS, PAD

CPU = torch.device("cpu")


class Table:
    """A model whose next word depends on all words so far, through a random table."""

    def __init__(self, images: int, words: int, seed: int) -> None:
        self.images, self.words, self.seed = images, words, seed

    def log_probs(self, image: int, prefix: tuple[int, ...]) -> Tensor:
        mixed = hash((self.seed, image, prefix)) % (2**31)
        random = torch.Generator().manual_seed(mixed)
        return (2 * torch.randn(self.words, generator=random)).log_softmax(-1)

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        grown = [(i, (*p, int(t))) for (i, p), t in zip(state.rows, tokens, strict=True)]
        return torch.stack([self.log_probs(i, p) for i, p in grown]), Prefixes(grown)

    def start(self) -> Prefixes:
        return Prefixes([(image, ()) for image in range(self.images)])

    def all_captions(self, image: int, length: int) -> list[tuple[float, tuple[int, ...]]]:
        """Every caption that ends, or is `length` tokens long, with its log-probability."""
        found = []
        for size in range(1, length + 1):
            for words in itertools.product(range(self.words), repeat=size):
                if EOS in words[:-1] or (words[-1] != EOS and size < length):
                    continue
                score, prefix = 0.0, (BOS,)
                for word in words:
                    score += float(self.log_probs(image, prefix)[word])
                    prefix = (*prefix, word)
                found.append((score, words))
        return sorted(found, reverse=True)


class Prefixes:
    def __init__(self, rows: list[tuple[int, tuple[int, ...]]]) -> None:
        self.rows = rows

    def reorder(self, rows: Tensor) -> Prefixes:
        return Prefixes([self.rows[int(row)] for row in rows])


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_what_brute_force_finds(seed: int) -> None:
    table, length = Table(images=2, words=5, seed=seed), 4
    width = 5**3  # no prefix is ever dropped
    found = beam_search(table.step, table.start(), 2, width, length, CPU, keep=10)
    for image in range(2):
        for place, (score, words) in enumerate(table.all_captions(image, length)[:10]):
            row = [t for t in found.tokens[image, place].tolist()]
            assert tuple(row[: len(words)]) == words
            assert all(t == PAD for t in row[len(words) :])
            assert float(found.scores[image, place]) == pytest.approx(score, abs=1e-4)
            assert float(found.log_probs[image, place].sum()) == pytest.approx(score, abs=1e-4)


def test_more_beams_than_words_leaves_no_false_caption() -> None:
    table = Table(images=1, words=5, seed=1)
    found = beam_search(table.step, table.start(), 1, 40, 2, CPU)
    real = found.tokens[0][~found.scores[0].isneginf()].tolist()
    assert len(real) == 21 and len({tuple(row) for row in real}) == 21  # 1 + 4 * 5 captions


def test_scores_fall_and_a_wider_beam_is_no_worse_than_greedy() -> None:
    table = Table(images=3, words=6, seed=2)
    found = beam_search(table.step, table.start(), 3, 4, 5, CPU)
    assert bool((found.scores.diff(dim=1) <= 0).all())
    best = greedy(table.step, table.start(), 3, 5, CPU)
    exhaustive = beam_search(table.step, table.start(), 3, 6**4, 5, CPU, keep=1)
    assert bool((exhaustive.scores[:, 0] >= best.scores[:, 0] - 1e-5).all())


def test_samples_follow_the_model() -> None:
    table = Table(images=1, words=5, seed=3)
    draw = torch.Generator().manual_seed(0)
    found = sample(table.step, table.start(), 1, 4000, 1, draw)
    share = torch.bincount(found.tokens.flatten(), minlength=5) / 4000
    torch.testing.assert_close(share, table.log_probs(0, (BOS,)).exp(), atol=0.03, rtol=0)


def test_nothing_follows_the_end() -> None:
    table = Table(images=4, words=5, seed=5)
    draw = torch.Generator().manual_seed(0)
    for found in (
        sample(table.step, table.start(), 4, 3, 6, draw),
        beam_search(table.step, table.start(), 4, 3, 6, CPU),
        greedy(table.step, table.start(), 4, 6, CPU),
    ):
        for row, values in zip(
            found.tokens.flatten(0, 1).tolist(), found.log_probs.flatten(0, 1), strict=True
        ):
            if EOS in row:
                end = row.index(EOS)
                assert set(row[end + 1 :]) <= {PAD}
                assert not values[end + 1 :].any()


def test_an_impossible_beam_is_refused() -> None:
    table = Table(images=1, words=5, seed=0)
    with pytest.raises(CaptionError, match="beam size 0"):
        beam_search(table.step, table.start(), 1, 0, 5, CPU)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_alone_is_the_best_of_all_and_no_later(seed: int) -> None:
    table = Table(images=3, words=6, seed=seed)
    calls = {"all": 0, "one": 0}

    def counted(name: str, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        calls[name] += 1
        return table.step(tokens, state)

    every = beam_search(partial(counted, "all"), table.start(), 3, 4, 8, CPU)
    best = beam_search(partial(counted, "one"), table.start(), 3, 4, 8, CPU, keep=1)
    length = best.tokens.shape[2]
    assert torch.equal(best.tokens[:, 0], every.tokens[:, 0, :length])
    assert bool((every.tokens[:, 0, length:] == PAD).all())
    torch.testing.assert_close(best.scores[:, 0], every.scores[:, 0])
    assert calls["one"] <= calls["all"]
