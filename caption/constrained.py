"""Constrained beam search: captions that hold given words. Knows no model, as `caption.decode`.

Anderson, Fernando, Johnson, Gould, "Guided Open Vocabulary Image Captioning with Constrained Beam
Search" (EMNLP 2017), with the choice of captions of nocaps' baseline: the likeliest one among those
with at least two constraints, or with all where there are fewer.

A constraint is satisfied by any one of its alternatives: a word, or a phrase of several. A finite
state machine reads along. Its state is the set of satisfied constraints and how far a phrase has
got; every state has a beam of its own, so that unlikely words need not compete with likely ones. A
word counts for every constraint that it satisfies.

Legend: B images, S states, K beams of a state, R = B S K rows grouped by image, U words that matter
to an image's machine, V vocabulary, T tokens, C candidates of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from caption.decode import Decoded, Step
from caption.errors import CaptionError
from caption.vocabulary import BOS, EOS, PAD, SPECIALS

MOST = 3  # constraints of an image: nocaps' setting; each one more doubles the states
SATISFY = 2  # constraints that a caption must hold, where there are so many: nocaps' setting

Constraint = Sequence[Sequence[int]]  # alternatives; each the tokens of a word or phrase


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The finite state machine of one image; state 0 is the first."""

    words: tuple[int, ...]  # U words that may lead elsewhere than all others do
    moves: tuple[tuple[int, ...], ...]  # S x U: the state behind each of them
    others: tuple[int, ...]  # S: the state behind any other word
    satisfied: tuple[int, ...]  # S: constraints satisfied in the state
    constraints: int

    @classmethod
    def of(cls, constraints: Sequence[Constraint]) -> Machine:
        """The machine of an image's constraints; none of them make the one of plain beam search.

        Raises CaptionError for more than `MOST` constraints and for those that cannot be.
        """
        _check(constraints)
        phrases = [
            (number, tuple(phrase))
            for number, constraint in enumerate(constraints)
            for phrase in constraint
        ]
        words = tuple(dict.fromkeys(word for _, phrase in phrases for word in phrase))
        start: _State = (frozenset(), ())
        states, moves, others = {start: 0}, [], []
        queue = [start]
        for satisfied, begun in queue:  # grows as states are found
            reached = []
            for word in (*words, None):
                after = _after(satisfied, begun, word, phrases)
                if after not in states:
                    states[after] = len(states)
                    queue.append(after)
                reached.append(states[after])
            others.append(reached.pop())
            moves.append(tuple(reached))
        return cls(
            words=words,
            moves=tuple(moves),
            others=tuple(others),
            satisfied=tuple(len(satisfied) for satisfied, _ in states),
            constraints=len(constraints),
        )


_State = tuple[frozenset[int], tuple[int, ...]]  # satisfied constraints, words of phrases begun


def _check(constraints: Sequence[Constraint]) -> None:
    if len(constraints) > MOST:
        raise CaptionError(
            f"{len(constraints)} constraints for one image, wanted {MOST} at most: each one more"
            " doubles the search"
        )
    for constraint in constraints:
        if not constraint or not all(constraint):
            raise CaptionError("a constraint without words, wanted one word or more")
        if any(word < len(SPECIALS) for phrase in constraint for word in phrase):
            raise CaptionError(f"a constraint holds one of {' '.join(SPECIALS)}, wanted words")


def _after(
    satisfied: frozenset[int],
    begun: tuple[int, ...],
    word: int | None,
    phrases: Sequence[tuple[int, tuple[int, ...]]],
) -> _State:
    """The state behind a word (None: one that is in no phrase)."""
    if word is None:
        return satisfied, ()
    said = (*begun, word)
    satisfied |= {number for number, phrase in phrases if said[-len(phrase) :] == phrase}
    open_ = [phrase for number, phrase in phrases if number not in satisfied]
    for first in range(len(said)):  # the longest end of what was said that begins a phrase
        rest = said[first:]
        if any(len(phrase) > len(rest) and phrase[: len(rest)] == rest for phrase in open_):
            return satisfied, rest
    return satisfied, ()


@dataclass(frozen=True)
class Constrained(Decoded):
    """Captions as `Decoded` has them, and how many constraints each satisfies."""

    satisfied: Tensor  # (B, K)


def constrained_beam_search(
    step: Step,
    state: Any,
    machines: Sequence[Machine],
    beams: int,
    length: int,
    device: torch.device,
    keep: int | None = None,
    satisfy: int = SATISFY,
) -> Constrained:
    """The `keep` (default `beams`) best captions of every image; `machines` has one per image.

    First come captions with `satisfy` constraints or more (all of them, where an image has
    fewer), by falling log-probability; where there are not enough of them, those with one less
    follow, and so on. Every state of a machine has `beams` beams. As in beam search, nothing is
    normalised by length, a caption ends by `EOS` or after `length` tokens, and the search ends
    when nothing can come to pass the `keep` best. An image without constraints is decoded as by
    `beam_search`.
    """
    if beams < 1 or length < 1 or satisfy < 0:
        raise CaptionError(
            f"beam size {beams}, length {length} and {satisfy} constraints, wanted 1 or more of"
            " beams and tokens and 0 or more constraints"
        )
    keep = beams if keep is None else min(keep, beams)
    log_probs, state = step(torch.full((len(machines),), BOS, device=device), state)  # (B, V)
    tables = _Tables.of(machines, log_probs.shape[-1], satisfy, device)
    nothing = log_probs.new_zeros(len(machines), 1, 1)  # (B, 1, 1): one beam, in state 0
    now = _advance(log_probs[:, None, None], nothing, tables, beams)
    state = state.reorder(now.rows(1))  # of one row per image
    tokens, chosen = now.word[..., None], now.value[..., None]  # (B, S, K, 1) each
    finished = now.word == EOS  # (B, S, K)
    for _ in range(length - 1):
        if _over(now.scores, finished, tables, keep):
            break
        log_probs, state = step(now.word.flatten(), state)  # (R, V)
        log_probs = log_probs.view(*now.word.shape, -1)  # (B, S, K, V)
        stay = log_probs.new_full(log_probs.shape[-1:], -torch.inf)  # (V,): it goes on as PAD
        stay[PAD] = 0.0
        log_probs = torch.where(finished[..., None], stay, log_probs)  # (B, S, K, V)
        now = _advance(log_probs, now.scores, tables, beams)
        state = state.reorder(now.rows(finished[0].numel()))
        tokens = torch.cat([_picked(tokens, now.parent), now.word[..., None]], dim=-1)
        chosen = torch.cat([_picked(chosen, now.parent), now.value[..., None]], dim=-1)
        ended = _picked(finished[..., None], now.parent)[..., 0]  # (B, S, K)
        finished = ended | (now.word == EOS)
    order, _ = _ranked(now.scores, tables)  # (B, S K)
    best = order[:, :keep]  # (B, keep)
    satisfied = tables.satisfied[..., None].expand_as(now.scores)  # (B, S, K)
    along = best[..., None].expand(-1, -1, tokens.shape[-1])  # (B, keep, T)
    return Constrained(
        tokens.flatten(1, 2).gather(1, along),
        chosen.flatten(1, 2).gather(1, along),
        now.scores.flatten(1).gather(1, best),
        satisfied.flatten(1).gather(1, best),
    )


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """The machines of a batch side by side; unused states and words are filled up."""

    words: Tensor  # (B, U)
    real: Tensor  # (B, U) whether there is such a word
    marked: Tensor  # (B, V) whether the word is one of them
    moves: Tensor  # (B, S, U)
    others: Tensor  # (B, S)
    satisfied: Tensor  # (B, S)
    wanted: Tensor  # (B,) constraints that a caption is to hold

    @classmethod
    def of(
        cls, machines: Sequence[Machine], vocabulary: int, satisfy: int, device: torch.device
    ) -> _Tables:
        """Raises CaptionError for a word outside the vocabulary."""
        unknown = [word for one in machines for word in one.words if word >= vocabulary]
        if unknown:
            raise CaptionError(
                f"a constraint holds word {unknown[0]} of a vocabulary of {vocabulary}"
            )
        images = len(machines)
        states = max(len(one.others) for one in machines)
        count = max(len(one.words) for one in machines)
        words = torch.zeros(images, count, dtype=torch.long)  # (B, U)
        real = torch.zeros(images, count, dtype=torch.bool)  # (B, U)
        marked = torch.zeros(images, vocabulary, dtype=torch.bool)  # (B, V)
        moves = torch.zeros(images, states, count, dtype=torch.long)  # (B, S, U)
        others = torch.zeros(images, states, dtype=torch.long)  # (B, S)
        satisfied = torch.zeros(images, states, dtype=torch.long)  # (B, S)
        for image, one in enumerate(machines):
            s, u = len(one.others), len(one.words)
            words[image, :u] = torch.tensor(one.words, dtype=torch.long)
            real[image, :u] = True
            marked[image, list(one.words)] = True
            moves[image, :s, :u] = torch.tensor(one.moves, dtype=torch.long).view(s, u)
            others[image, :s] = torch.tensor(one.others)
            satisfied[image, :s] = torch.tensor(one.satisfied)
        wanted = torch.tensor([min(satisfy, one.constraints) for one in machines])  # (B,)
        every = (words, real, marked, moves, others, satisfied, wanted)
        names = cls.__dataclass_fields__
        return cls(**{name: table.to(device) for name, table in zip(names, every, strict=True)})


class _Beams(NamedTuple):
    """The beams of all states behind a step."""

    scores: Tensor  # (B, S, K), falling; -inf where there is none
    word: Tensor  # (B, S, K)
    value: Tensor  # (B, S, K) log-probability of the word
    parent: Tensor  # (B, S, K) the row of the image's rows before that it goes on from

    def rows(self, before: int) -> Tensor:
        """The parents (R,) among the rows of all images, `before` of each."""
        first = torch.arange(len(self.parent), device=self.parent.device) * before  # (B,)
        return (self.parent + first[:, None, None]).flatten()


def _advance(log_probs: Tensor, scores: Tensor, tables: _Tables, beams: int) -> _Beams:
    """The best `beams` of every state, from log-probabilities (B, S', K', V) behind (B, S', K').

    A word outside the machine leads all beams of a state to the same one, so the best of a
    state's beams are enough; those of the machine are looked at one by one.
    """
    images, from_states, from_beams, size = log_probs.shape
    totals = scores[..., None] + log_probs  # (B, S', K', V)
    plain = totals.masked_fill(tables.marked[:, None, None], -torch.inf).flatten(2)  # (B, S', K' V)
    value, flat = plain.topk(min(beams, plain.shape[-1]), dim=-1)  # (B, S', C')
    first = torch.arange(from_states, device=flat.device)[:, None] * from_beams  # (S', 1)
    own = tables.words[:, None, None].expand(-1, from_states, from_beams, -1)  # (B, S', K', U)
    own_value = totals.gather(3, own).masked_fill(~tables.real[:, None, None], -torch.inf)
    own_parent = (first + torch.arange(from_beams, device=flat.device))[..., None]  # (S', K', 1)
    own_state = tables.moves[:, :from_states, None].expand_as(own)  # (B, S', K', U)
    values = torch.cat([value.flatten(1), own_value.flatten(1)], dim=1)  # (B, C)
    words = torch.cat([(flat % size).flatten(1), own.flatten(1)], dim=1)  # (B, C)
    parents = torch.cat(
        [(first + flat // size).flatten(1), own_parent.expand_as(own).flatten(1)], dim=1
    )  # (B, C)
    other = tables.others[:, :from_states, None].expand_as(flat)  # (B, S', C')
    targets = torch.cat([other.flatten(1), own_state.flatten(1)], dim=1)  # (B, C)
    lacking = max(0, beams - values.shape[1])
    values = F.pad(values, (0, lacking), value=-torch.inf)  # (B, C)
    words, parents, targets = (F.pad(t, (0, lacking)) for t in (words, parents, targets))
    state = torch.arange(tables.others.shape[1], device=flat.device)[:, None]  # (S, 1)
    by_state = values[:, None].masked_fill(targets[:, None] != state, -torch.inf)  # (B, S, C)
    best, place = by_state.topk(beams, dim=-1)  # (B, S, K)
    word = words[:, None].expand_as(by_state).gather(2, place)  # (B, S, K)
    parent = parents[:, None].expand_as(by_state).gather(2, place)  # (B, S, K)
    chosen = log_probs.flatten(1).gather(1, (parent * size + word).flatten(1))  # (B, S K)
    return _Beams(best, word, chosen.view(images, -1, beams), parent)


def _ranked(scores: Tensor, tables: _Tables) -> tuple[Tensor, Tensor]:
    """All beams (B, S K) of (B, S, K) in the order of the result, and their ranks.

    A rank is the number of constraints, no more than wanted; -1 where there is no caption.
    """
    rank = tables.satisfied.minimum(tables.wanted[:, None])[..., None].expand_as(scores)
    rank = rank.masked_fill(scores.isneginf(), -1).flatten(1)  # (B, S K)
    order = scores.flatten(1).sort(dim=1, descending=True, stable=True).indices
    again = rank.gather(1, order).sort(dim=1, descending=True, stable=True).indices
    return order.gather(1, again), rank


def _over(scores: Tensor, finished: Tensor, tables: _Tables, keep: int) -> bool:
    """Whether no beam can come to pass the `keep` best of any image: scores only fall."""
    order, rank = _ranked(scores, tables)  # (B, S K) each
    best = order[:, :keep]  # (B, keep)
    flat, ended = scores.flatten(1), finished.flatten(1)  # (B, S K) each
    done = ended.gather(1, best) & (rank.gather(1, best) == tables.wanted[:, None])  # (B, keep)
    live = ~ended & ~flat.isneginf()  # (B, S K)
    rising = live & (flat > flat.gather(1, best)[:, -1:])  # (B, S K)
    return bool((~live.any(dim=1) | (done.all(dim=1) & ~rising.any(dim=1))).all())


def _picked(kept: Tensor, parent: Tensor) -> Tensor:
    """(B, S, K, t) by the parents (B, S, K) of the new beams."""
    flat = kept.flatten(1, 2)  # (B, S K, t)
    rows = parent.flatten(1)[..., None].expand(-1, -1, flat.shape[-1])  # (B, S K, t)
    return flat.gather(1, rows).view_as(kept)
