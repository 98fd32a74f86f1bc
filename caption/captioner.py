"""What a captioner is: the seam between models, decoding and training.

Legend: B images, R rows (R / B captions or beams per image, grouped by image), T words,
V vocabulary, W words that are predicted: those of all rows but their padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from caption.features import Features


class State(Protocol):
    """What decoding carries from word to word, one entry per row."""

    def reorder(self, rows: Tensor) -> Any:
        """The state of the rows at `rows` (R',), which stay grouped by image."""


@dataclass(frozen=True)
class TrainingPass:
    """Teacher-forced logits and the model's own additions to the loss."""

    logits: Tensor  # (W, V)
    penalty: Tensor | None = None  # a scalar added to the cross-entropy
    facts: Mapping[str, float] = field(default_factory=dict)  # logged with every update


class Captioner(nn.Module, ABC):
    """A model that captions images; it knows nothing of files, beams or rewards.

    `needs` names the feature streams it reads.
    """

    needs: tuple[str, ...]

    @abstractmethod
    def encode(self, features: Features) -> Any:
        """The memory of B images, computed once per image."""

    @abstractmethod
    def forward(self, memory: Any, tokens: Tensor) -> Tensor:
        """Teacher forcing: logits (R, T, V) after each of the tokens (R, T).

        R is a multiple of the memory's B; rows r of image b stand at b R/B .. (b+1) R/B - 1.
        """

    def training_pass(self, memory: Any, tokens: Tensor, valid: Tensor) -> TrainingPass:
        """Logits (W, V) as `forward` gives them, with what the model adds to the cross-entropy.

        `valid` (R, T) is True where the token has a word or the end to predict: W times. What
        stands elsewhere need not be computed.
        """
        return TrainingPass(self(memory, tokens)[valid])

    @abstractmethod
    def start(self, memory: Any) -> Any:
        """The state before the first word: one row per image."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Log-probabilities (R, V) of the next word after `tokens` (R,), and the next state."""
