"""Several captioners that decode together: one beam search over the mean of their predictions.

The Meshed-Memory paper averages the output probabilities at each step, its release the
log-probabilities (their mean is not normalised again); both are here.

Legend: B images, R rows, T words, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from caption.captioner import Captioner, State
from caption.config import choice
from caption.errors import CaptionError
from caption.features import Features

AVERAGES = ("probabilities", "log_probabilities")


@dataclass(frozen=True)
class EnsembleState:
    """The members' states."""

    members: tuple[State, ...]

    def reorder(self, rows: Tensor) -> EnsembleState:
        """The states of the rows at `rows` (R',)."""
        return EnsembleState(tuple(member.reorder(rows) for member in self.members))


class Ensemble(Captioner):
    """Captioners of one vocabulary as one captioner."""

    def __init__(self, members: Sequence[Captioner], average: str = "probabilities") -> None:
        """`average` is what the mean is taken of: `probabilities` or `log_probabilities`."""
        super().__init__()
        choice("average", average, AVERAGES)
        if not members:
            raise CaptionError("an ensemble of no captioners, wanted 1 or more")
        self.members = nn.ModuleList(members)
        self.average = average
        self.needs = tuple(dict.fromkeys(name for member in members for name in member.needs))

    def encode(self, features: Features) -> tuple[Any, ...]:
        return tuple(member.encode(features) for member in self._all())

    def forward(self, memory: tuple[Any, ...], tokens: Tensor) -> Tensor:
        """Mean log-probabilities (R, T, V), which serve as logits."""
        each = [
            member(one, tokens).log_softmax(dim=-1)
            for member, one in zip(self._all(), memory, strict=True)
        ]
        return self._mean(torch.stack(each))

    def start(self, memory: tuple[Any, ...]) -> EnsembleState:
        pairs = zip(self._all(), memory, strict=True)
        return EnsembleState(tuple(member.start(one) for member, one in pairs))

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        pairs = zip(self._all(), state.members, strict=True)
        each = [member.step(tokens, one) for member, one in pairs]
        log_probs = self._mean(torch.stack([found for found, _ in each]))  # (R, V)
        return log_probs, EnsembleState(tuple(after for _, after in each))

    def _mean(self, log_probs: Tensor) -> Tensor:
        """(members, .., V) -> (.., V)."""
        if self.average == "log_probabilities":
            return log_probs.mean(dim=0)
        return log_probs.logsumexp(dim=0) - math.log(len(log_probs))

    def _all(self) -> list[Captioner]:
        return list(self.members)  # type: ignore[arg-type]
