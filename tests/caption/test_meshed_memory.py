"""The equations of the Meshed-Memory paper, computed again without the model's parts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from caption.blocks import AttentionOnAttention
from caption.errors import CaptionError
from caption.models.meshed_memory import (
    SLOTS,
    MemoryAugmentedAttention,
    Mesh,
    MeshedMemoryConfig,
)
from caption.transformer import ImageRows, Memory, PlainCrossAttention, Transformer
from tests.caption.toy import WIDTH, random_features

D, HEADS = 12, 3


def config(**changes: Any) -> MeshedMemoryConfig:
    small = {"width": D, "heads": HEADS, "feed_forward": 16, "memory": 5, "dropout": 0.0}
    return MeshedMemoryConfig(**{**small, **changes})


def image(mask: Tensor) -> ImageRows:
    return ImageRows(mask)


def by_head(attention: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V per head, of one image (N, H d)."""
    d = D // HEADS
    mixed = []
    for head in range(HEADS):
        place = slice(head * d, (head + 1) * d)
        logits = queries[:, place] @ keys[:, place].T / math.sqrt(d)
        mixed.append(logits.softmax(dim=-1) @ values[:, place])
    found: Tensor = attention.output(torch.cat(mixed, dim=-1))
    return found


def test_equation_5_keys_and_values_with_memory_behind_them() -> None:
    torch.manual_seed(0)
    slot = MemoryAugmentedAttention(config())
    x = torch.randn(2, 4, D)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    found = slot(x, image(mask))
    for n, real in enumerate((4, 2)):  # slots are never masked, padded rows are
        rows, attention = x[n, :real], slot.attention
        memory_keys = math.sqrt(D // HEADS) * slot.memory_keys[0]
        memory_values = math.sqrt(5) * slot.memory_values[0]
        keys = torch.cat([attention.key(rows), memory_keys])
        values = torch.cat([attention.value(rows), memory_values])
        wanted = by_head(attention, attention.query(rows), keys, values)
        torch.testing.assert_close(found[n, :real], wanted)


def test_memory_begins_at_the_scale_of_the_release() -> None:
    settings = MeshedMemoryConfig(encoder_layers=1, decoder_layers=1)
    model = Transformer(settings, in_width=8, vocabulary=20, slots=SLOTS)
    keys = model.state_dict()["encoder.0.self_attention.memory_keys"]
    bound = math.sqrt(6 / (41 * 512))
    assert float(keys.abs().max()) <= bound
    assert float(keys.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)


def mesh(settings: MeshedMemoryConfig) -> tuple[Mesh, PlainCrossAttention, Memory, Tensor]:
    torch.manual_seed(1)
    attention = PlainCrossAttention(settings, add_norm=settings.norm == "levels")
    wiring = Mesh(settings, (0, 1, 2))
    memory = Memory(tuple(torch.randn(2, 4, D) for _ in range(3)), torch.ones(2, 4) > 0)
    return wiring, attention, memory, torch.randn(4, 3, D)


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
@pytest.mark.parametrize("norm", ["levels", "sum"])
def test_equations_7_to_9_gated_sum_of_the_levels(gate: str, norm: str) -> None:
    settings = config(gate=gate, norm=norm)
    wiring, attention, memory, words = mesh(settings)
    prepared = wiring.prepare(attention, memory)
    found, kept = wiring(attention, words, prepared, None)
    assert kept is None
    contexts, logits = [], []
    for level, linear in zip(memory.levels, wiring.gates, strict=True):
        source = attention.prepare(level, memory.mask)
        contexts.append(attention(words, source, None)[0])
        logits.append(linear(torch.cat([words, contexts[-1]], dim=-1)))
    if gate == "softmax":
        total = sum(logit.exp() for logit in logits)
        alphas = [logit.exp() / total for logit in logits]
        torch.testing.assert_close(torch.stack(alphas).sum(dim=0), torch.ones_like(words))
    else:
        alphas = [1 / (1 + (-logit).exp()) for logit in logits]
    wanted = sum(a * c for a, c in zip(alphas, contexts, strict=True)) / math.sqrt(3)
    if norm == "sum":
        wanted = F.layer_norm(words + wanted, (D,))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("wiring", "reads"), [("one_to_one", (0, 1, 2)), ("last", (2, 2, 2)), ("meshed", None)]
)
def test_which_levels_a_decoder_layer_reads(wiring: str, reads: tuple[int, ...] | None) -> None:
    torch.manual_seed(2)
    model = Transformer(config(wiring=wiring), in_width=WIDTH, vocabulary=9, slots=SLOTS).eval()
    memory = model.encode(random_features(2))
    x = torch.randn(2, 3, D)
    for n, layer in enumerate(model.decoder):
        seen, _ = layer(x, layer.prepare(memory), None)  # type: ignore[operator]
        for level in range(3):
            changed = list(memory.levels)
            changed[level] = changed[level] + 1.0
            other = Memory(tuple(changed), memory.mask)
            now, _ = layer(x, layer.prepare(other), None)  # type: ignore[operator]
            read = reads is None or reads[n] == level
            assert torch.allclose(seen, now, atol=1e-6) != read, (n, level)


def test_attention_on_attention_gates_the_result_by_the_query() -> None:
    torch.manual_seed(3)
    attention = AttentionOnAttention(D, HEADS)
    x = torch.randn(1, 4, D)
    a = by_head(attention, attention.query(x[0]), attention.key(x[0]), attention.value(x[0]))
    both = torch.cat([a, x[0]], dim=-1)
    wanted = attention.gate(both).sigmoid() * attention.information(both)
    torch.testing.assert_close(attention(x, attention.project(x), None)[0], wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wiring": "mesh"}, "wanted one of meshed"),
        ({"gate": "relu"}, "wanted one of sigmoid, softmax"),
        ({"memory": -1}, "wanted 0 or more"),
        ({"attend_padding": True}, "set model.rows=50"),
        ({"rows": 0}, "wanted 1 or more"),
        ({"wiring": "one_to_one", "decoder_layers": 2}, "wanted as many of each"),
        ({"wiring": "last", "norm": "sum"}, "sums no levels"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptionError, match=message):
        config(**changes)
