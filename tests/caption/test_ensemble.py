"""Ensembles decode by the mean of their members' predictions."""

from __future__ import annotations

import pytest
import torch

from caption.constrained import Machine, constrained_beam_search
from caption.decode import beam_search
from caption.ensemble import Ensemble
from caption.errors import CaptionError
from caption.transformer import Transformer, TransformerConfig
from caption.vocabulary import BOS
from tests.caption.toy import WIDTH, random_features

CPU = torch.device("cpu")


def member(seed: int, stream: str = "grids") -> Transformer:
    torch.manual_seed(seed)
    config = TransformerConfig(
        stream=stream, width=16, heads=2, feed_forward=24, encoder_layers=1, decoder_layers=1
    )
    return Transformer(config, in_width=WIDTH, vocabulary=11).eval()


@pytest.mark.parametrize("average", ["probabilities", "log_probabilities"])
def test_the_mean_of_the_members(average: str) -> None:
    members = [member(0), member(1), member(2)]
    together, features = Ensemble(members, average), random_features(2)
    first = torch.full((2,), BOS)
    each = torch.stack([m.step(first, m.start(m.encode(features)))[0] for m in members])
    found, state = together.step(first, together.start(together.encode(features)))
    wanted = each.exp().mean(0).log() if average == "probabilities" else each.mean(0)
    torch.testing.assert_close(found, wanted)
    tokens = torch.tensor([[BOS, 5, 6], [BOS, 7, 8]])
    forced = together(together.encode(features), tokens)
    for place in range(1, 3):
        found, state = together.step(tokens[:, place], state)
        torch.testing.assert_close(found, forced[:, place], atol=1e-5, rtol=1e-5)


def test_one_member_and_twice_the_same_decode_as_alone() -> None:
    alone, features = member(3), random_features(3)
    wanted = beam_search(alone.step, alone.start(alone.encode(features)), 3, 3, 8, CPU)
    for members in ([alone], [alone, alone]):
        together = Ensemble(members)
        found = beam_search(together.step, together.start(together.encode(features)), 3, 3, 8, CPU)
        assert torch.equal(found.tokens, wanted.tokens)
        torch.testing.assert_close(found.scores, wanted.scores)


def test_an_ensemble_decodes_with_constraints() -> None:
    together, features = Ensemble([member(0), member(1)]), random_features(2)
    machines = [Machine.of([[(9,)]]), Machine.of([])]
    state = together.start(together.encode(features))
    found = constrained_beam_search(together.step, state, machines, 3, 8, CPU)
    plain = beam_search(together.step, state, 2, 3, 8, CPU)
    assert 9 in found.tokens[0, 0].tolist()
    torch.testing.assert_close(found.scores[1], plain.scores[1])


def test_members_may_read_different_streams() -> None:
    together = Ensemble([member(0, "grids"), member(1, "regions"), member(2, "grids")])
    assert together.needs == ("grids", "regions")


def test_what_cannot_be_an_ensemble() -> None:
    with pytest.raises(CaptionError, match="no captioners"):
        Ensemble([])
    with pytest.raises(CaptionError, match="'median', wanted one of probabilities"):
        Ensemble([member(0)], "median")
