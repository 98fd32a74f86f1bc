"""Baselines of self-critical training."""

from __future__ import annotations

import pytest
import torch

from caption.losses import mean_of_others


def test_a_draw_is_compared_with_the_others_of_its_image_alone() -> None:
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])  # (B, K)
    others = mean_of_others(rewards)
    assert others.tolist() == [[4.0, 3.5, 1.5], [1.5, 1.5, 0.0]]
    assert (rewards - others).sum(dim=1).tolist() == pytest.approx([0.0, 0.0])
