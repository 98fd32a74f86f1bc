"""The two losses of captioning: cross-entropy and self-critical.

Legend: R captions, T words, V vocabulary, B images, K samples per image.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from caption.vocabulary import PAD


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean over all words that are not padding; logits (.., V), targets (..)."""
    return F.cross_entropy(
        logits.flatten(0, -2),  # (all, V)
        targets.flatten(),  # (all,)
        ignore_index=PAD,
        label_smoothing=smoothing,
    )


def word_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probability (R, T) of each target, 0 on padding."""
    chosen = -F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="none"
    )
    return chosen.view(targets.shape)


def mean_of_others(rewards: Tensor) -> Tensor:
    """For each of an image's K > 1 samples, (B, K), the mean reward of the K - 1 others, (B, K).

    The baseline of "A Better Variant of Self-Critical Sequence Training" (Luo, 2020).
    """
    total = rewards.sum(dim=1, keepdim=True)  # (B, 1)
    return (total - rewards) / (rewards.shape[1] - 1)


def self_critical(log_probs: Tensor, advantage: Tensor, slots: int) -> Tensor:
    """Policy gradient: mean over samples of -(advantage) * (sum of log-probabilities / slots).

    `log_probs` (R, T) are 0 behind the end; `advantage` (R,) is reward minus baseline; `slots`
    is the longest length that decoding allows, so that all captions weigh their words alike
    (the loss of the Meshed-Memory release; Rennie et al., CVPR 2017, up to that constant).
    """
    return -(advantage * log_probs.sum(dim=-1) / slots).mean()
