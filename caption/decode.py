"""Decoding over a step function: greedy, sampling, beam search. Knows no model.

A step takes the last tokens (R,) and a state and returns log-probabilities (R, V) of the next
token and the next state; `state.reorder(rows)` picks rows. Rows are grouped by image.
Legend: B images, K beams, R = B K rows, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from caption.errors import CaptionError
from caption.vocabulary import BOS, EOS, PAD

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Decoded:
    """Captions as tokens: best first, `PAD` behind `EOS`."""

    tokens: Tensor  # (B, K, T)
    log_probs: Tensor  # (B, K, T) of each token, 0 behind EOS
    scores: Tensor  # (B, K) sums of log_probs; -inf marks a place no caption was found for


def greedy(step: Step, state: Any, images: int, length: int, device: torch.device) -> Decoded:
    """The likeliest token at each step, at most `length` steps; K = 1."""

    def choose(log_probs: Tensor) -> Tensor:
        return log_probs.argmax(dim=-1)  # (R,)

    return _roll(step, state, images, 1, length, device, choose)


def sample(
    step: Step,
    state: Any,
    images: int,
    samples: int,
    length: int,
    generator: torch.Generator,
) -> Decoded:
    """`samples` captions per image drawn word by word from the model; K = samples, unsorted."""

    def choose(log_probs: Tensor) -> Tensor:
        drawn = torch.multinomial(log_probs.exp(), 1, generator=generator)  # (R, 1)
        return drawn[:, 0]

    return _roll(step, state, images, samples, length, generator.device, choose)


def _roll(
    step: Step,
    state: Any,
    images: int,
    rows_each: int,
    length: int,
    device: torch.device,
    choose: Callable[[Tensor], Tensor],
) -> Decoded:
    rows = images * rows_each
    if rows_each > 1:
        state = state.reorder(torch.arange(images, device=device).repeat_interleave(rows_each))
    last = torch.full((rows,), BOS, device=device)  # (R,)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)  # (R,)
    tokens, chosen = [], []
    for _ in range(length):
        log_probs, state = step(last, state)  # (R, V)
        word = choose(log_probs)  # (R,)
        value = log_probs.gather(1, word[:, None])[:, 0]  # (R,)
        last = word.masked_fill(finished, PAD)
        tokens.append(last)
        chosen.append(value.masked_fill(finished, 0.0))
        finished = finished | (last == EOS)
        if bool(finished.all()):
            break
    all_tokens = torch.stack(tokens, dim=1).view(images, rows_each, -1)  # (B, K, T)
    all_chosen = torch.stack(chosen, dim=1).view(images, rows_each, -1)  # (B, K, T)
    return Decoded(all_tokens, all_chosen, all_chosen.sum(dim=-1))


def beam_search(
    step: Step,
    state: Any,
    images: int,
    beams: int,
    length: int,
    device: torch.device,
    keep: int | None = None,
) -> Decoded:
    """The `keep` (default `beams`) captions of highest summed log-probability per image.

    No length normalisation, as the captioning papers decode. A finished caption stays in the
    beam with its score; the search ends after `length` tokens, or when the `keep` best captions
    are finished: no other can come to pass them, since scores only fall.
    """
    if beams < 1 or length < 1:
        raise CaptionError(f"beam size {beams} and length {length}, wanted 1 or more of each")
    keep = beams if keep is None else min(keep, beams)
    log_probs, state = step(torch.full((images,), BOS, device=device), state)  # (B, V)
    size = log_probs.shape[-1]
    scores = log_probs.new_full((images, beams), -torch.inf)  # (B, K)
    word = torch.full((images, beams), PAD, device=device)  # (B, K)
    first = min(beams, size)
    scores[:, :first], word[:, :first] = log_probs.topk(first, dim=-1)
    tokens = word[:, :, None]  # (B, K, 1)
    chosen = scores[:, :, None]  # (B, K, 1)
    finished = word == EOS  # (B, K)
    base = torch.arange(images, device=device)[:, None]  # (B, 1)
    state = state.reorder(base.repeat(1, beams).view(-1))  # R = B K rows
    for _ in range(length - 1):
        if bool((finished | scores.isneginf())[:, :keep].all()):
            break
        log_probs, state = step(word.view(-1), state)  # (R, V)
        log_probs = log_probs.view(images, beams, size)  # (B, K, V)
        stay = log_probs.new_full((size,), -torch.inf)  # (V,): a finished caption goes on as PAD
        stay[PAD] = 0.0
        log_probs = torch.where(finished[:, :, None], stay, log_probs)
        totals = scores[:, :, None] + log_probs  # (B, K, V)
        scores, flat = totals.view(images, -1).topk(beams, dim=-1)  # (B, K)
        parent = flat // size  # (B, K)
        word = flat % size  # (B, K)
        value = log_probs.view(images, -1).gather(1, flat)  # (B, K)
        state = state.reorder((base * beams + parent).view(-1))
        tokens = torch.cat([_rows(tokens, parent), word[:, :, None]], dim=-1)  # (B, K, t)
        chosen = torch.cat([_rows(chosen, parent), value[:, :, None]], dim=-1)  # (B, K, t)
        finished = finished.gather(1, parent) | (word == EOS)  # (B, K)
    return Decoded(tokens[:, :keep], chosen[:, :keep], scores[:, :keep])


def _rows(kept: Tensor, parent: Tensor) -> Tensor:
    """(B, K, t) by the parents (B, K) of the new beams."""
    return kept.gather(1, parent[:, :, None].expand(-1, -1, kept.shape[-1]))
