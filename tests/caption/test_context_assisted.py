"""CAT's equations against plain attention over joined keys, and what its settings promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from caption.errors import CaptionError
from caption.models.context_assisted import (
    EPSILON,
    CATConfig,
    ContextAssisted,
    ContextAssistedTransformer,
    MeshedCATConfig,
    distance,
)
from caption.transformer import PlainCrossAttention, Transformer, TransformerConfig
from tests.caption.toy import WIDTH, random_features

PASSES = [("ohc", True), ("ohc", False), ("ihc", True), ("ihc", False), ("chc", True)]
PASSES += [("chc", False), ("light", True)]
SMALL: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "feed_forward": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
}


def attention(strategy: str, shared: bool, seed: int = 1) -> ContextAssisted:
    torch.manual_seed(seed)
    config = TransformerConfig(**SMALL)
    inner, second = PlainCrossAttention(config), PlainCrossAttention(config)
    for module in (inner, second):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return ContextAssisted(inner, strategy, None if shared else second)


def naive(module: ContextAssisted, q: Tensor, level: Tensor, mask: Tensor) -> Tensor:
    """The contexts (R, T, D) word by word, with one full attention per pass over joined rows."""
    first, second = module.inner, module.second
    each = len(q) // len(level)
    level, mask = level.repeat_interleave(each, 0), mask.repeat_interleave(each, 0)
    contexts, memory = [], level[:, :0]  # (R, 0, D)
    for t in range(q.shape[1]):
        word = q[:, t : t + 1]  # (R, 1, D)
        seen = first.attention(word, first.attention.project(level), mask[:, None])
        temporary = first.add_norm(word, seen)  # LN(q + MHA(q, K, V))
        newest = word if module.strategy == "light" else temporary
        if module.strategy != "ihc":
            memory = torch.cat([memory, newest], dim=1)
        rows = level if module.strategy != "ohc" else level[:, :0]
        joined = torch.cat([rows, memory], dim=1)  # (R, N + t, D)
        allowed = torch.ones(joined.shape[:2], dtype=torch.bool)
        allowed[:, : rows.shape[1]] = mask[:, : rows.shape[1]]
        told = second.attention(word, second.attention.project(joined), allowed[:, None])
        contexts.append(second.add_norm(word, told))  # LN(q + MHA(q, [K; H], [V; H]))
        if module.strategy == "ihc":
            memory = torch.cat([memory, newest], dim=1)
    return torch.cat(contexts, dim=1)


@pytest.mark.parametrize(("strategy", "shared"), PASSES)
def test_final_context_is_attention_over_rows_and_history(strategy: str, shared: bool) -> None:
    module = attention(strategy, shared)
    q, level = torch.randn(6, 5, 16), torch.randn(3, 4, 16)
    mask = torch.tensor([[True] * 4, [True, True, False, False], [True, False, False, False]])
    found, history = module(q, module.prepare(level, mask), None)
    torch.testing.assert_close(found, naive(module, q, level, mask), atol=1e-5, rtol=1e-5)
    assert history.weight.shape == (6, 2, 5)


@pytest.mark.parametrize(("strategy", "shared"), PASSES)
def test_parallel_training_equals_steps_with_reordered_rows(strategy: str, shared: bool) -> None:
    module = attention(strategy, shared)
    q, level = torch.randn(6, 5, 16), torch.randn(3, 4, 16)
    sources = module.prepare(level, torch.ones(3, 4, dtype=torch.bool))
    swap = torch.tensor([1, 0, 3, 2, 5, 4])  # within images, as beams change places
    before, past = module(q[:, :2], sources, None)
    after, _ = module(q[swap, 2:], sources, past.select(swap))
    whole, _ = module(torch.cat([q[swap, :2], q[swap, 2:]], dim=1), sources, None)
    torch.testing.assert_close(before[swap], whole[:, :2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after, whole[:, 2:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("strategy", "shared"), PASSES)
def test_weights_add_up_and_keep_to_the_strategy(strategy: str, shared: bool) -> None:
    module = attention(strategy, shared)
    q, level = torch.randn(4, 5, 16), torch.randn(2, 3, 16)
    mask = torch.tensor([[True] * 3, [True, False, False]])
    sources = module.prepare(level, mask)
    rows, past = module.weights(q, sources, None)  # (R, H, T, N), (R, H, T, t)
    torch.testing.assert_close(rows.sum(-1) + past.sum(-1), torch.ones(4, 2, 5))
    torch.testing.assert_close(past.sum(-1), module(q, sources, None)[1].weight)
    assert not rows[2:, :, :, 1:].any()
    later = torch.ones(5, 5).triu(0 if strategy == "ihc" else 1).bool()
    assert not past[..., later].any() and bool((past[..., ~later] > 0).all())
    assert bool(rows.sum() == 0) == (strategy == "ohc")


def test_incomplete_history_at_the_first_word_is_plain_attention() -> None:
    module = attention("ihc", True)
    q, level = torch.randn(2, 1, 16), torch.randn(2, 3, 16)
    mask = torch.ones(2, 3, dtype=torch.bool)
    plain, _ = module.inner(q, module.inner.prepare(level, mask), None)
    torch.testing.assert_close(module(q, module.prepare(level, mask), None)[0], plain)


def test_hidden_history_sends_back_no_gradient() -> None:
    module = attention("ihc", True)
    q = torch.randn(1, 3, 16, requires_grad=True)
    sources = module.prepare(torch.randn(1, 2, 16), torch.ones(1, 2, dtype=torch.bool))
    module(q, sources, None)[0][:, 1].sum().backward()
    assert q.grad is not None
    assert bool(q.grad[:, :2].any()) and not q.grad[:, 2].any()


def test_shared_passes_add_no_parameters_and_own_ones_add_one_attention_per_layer() -> None:
    def count(config: Any) -> int:
        kind = Transformer if type(config) is TransformerConfig else ContextAssistedTransformer
        return sum(p.numel() for p in kind(config, in_width=4, vocabulary=11).parameters())

    small: dict[str, Any] = {
        "feed_forward": 8,
        "encoder_layers": 1,
    }  # the attention is of full size
    plain = count(TransformerConfig(**small))
    assert count(CATConfig(gamma=0.0, **small)) == plain
    assert count(CATConfig(strategy="light", **small)) == plain + 3 * 8  # the betas
    own = count(CATConfig(gamma=0.0, shared=False, **small))
    assert own == plain + 3 * (1_050_624 + 1_024)


@pytest.mark.parametrize("norm", ["rms", "mse", "abs", "l2"])
def test_adaptive_weight_constraint(norm: str) -> None:
    random = torch.Generator().manual_seed(4)
    weight = torch.rand(2, 3, 4, 5, generator=random)  # (L, R, H, T)
    beta = torch.rand(2, 4, generator=random)
    valid = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    found = distance(weight, beta, valid, norm)
    for layer in range(2):
        for head in range(4):
            off = [
                [float(weight[layer, r, head, t] - beta[layer, head]) for t in range(n)]
                for r, n in enumerate((5, 3, 1))
            ]
            flat = [value for row in off for value in row]
            square = sum(v * v for v in flat) / len(flat)
            wanted = {
                "rms": (square + EPSILON) ** 0.5,
                "mse": square,
                "abs": sum(map(abs, flat)) / len(flat),
                "l2": sum((sum(v * v for v in row) + EPSILON) ** 0.5 for row in off) / len(off),
            }[norm]
            assert float(found[layer, head]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("norm", ["rms", "mse", "abs", "l2"])
def test_the_constraint_has_a_gradient_where_weight_is_beta(norm: str) -> None:
    weight = torch.full((1, 1, 1, 2), 0.5, requires_grad=True)
    distance(weight, torch.full((1, 1), 0.5), torch.ones(1, 2) > 0, norm).sum().backward()
    assert weight.grad is not None and not weight.grad.any()  # 0, not NaN


def built(**changes: Any) -> ContextAssistedTransformer:
    torch.manual_seed(2)
    config = CATConfig(**{**SMALL, **changes})
    return ContextAssistedTransformer(config, in_width=WIDTH, vocabulary=11)


def told(model: ContextAssistedTransformer) -> Any:
    words = torch.randint(4, 11, (6, 5), generator=torch.Generator().manual_seed(0))
    valid = torch.arange(5) < torch.tensor([5, 3, 4, 5, 2, 1])[:, None]
    return model.training_pass(model.encode(random_features(3)), words, valid)


def test_the_loss_adds_gamma_times_the_sum_over_layers_and_heads() -> None:
    one, two, mean = built(), built(gamma=1.5), built(constraint_mean=True)
    a, b, c = told(one), told(two), told(mean)
    torch.testing.assert_close(b.penalty, 3 * a.penalty)
    torch.testing.assert_close(c.penalty * (2 * 2), a.penalty)  # L H
    assert a.facts["awc"] * 0.5 == pytest.approx(float(a.penalty.detach()))
    assert {"beta_1", "beta_2", "history_1", "history_2", "history_first"} < set(a.facts)


def test_fixed_bounded_and_free_betas() -> None:
    for changes in ({}, {"bounded_beta": True}, {"learn_beta": False}):
        model = built(beta=0.3, **changes)
        assert model.constraint is not None
        torch.testing.assert_close(model.constraint.beta, torch.full((2, 2), 0.3))
        learned = [name for name, _ in model.named_parameters() if "constraint" in name]
        assert bool(learned) == changes.get("learn_beta", True)
        assert "constraint.raw" in model.state_dict()
    with torch.no_grad():
        bounded = built(bounded_beta=True).constraint
        assert bounded is not None
        bounded.raw.fill_(30.0)
        assert bool((bounded.beta <= 1).all())


def test_words_behind_the_end_do_not_count() -> None:
    model = built()
    memory = model.encode(random_features(3))
    words = torch.randint(4, 11, (3, 6), generator=torch.Generator().manual_seed(0))
    short = model.training_pass(memory, words[:, :4], torch.ones(3, 4) > 0)
    valid = (torch.arange(6) < 4).repeat(3, 1)
    long = model.training_pass(memory, words, valid)
    torch.testing.assert_close(short.penalty, long.penalty)
    assert short.facts == pytest.approx(long.facts)


def test_incomplete_history_is_not_constrained_at_the_first_word() -> None:
    model = built(strategy="ihc")
    memory = model.encode(random_features(3))
    words = torch.randint(4, 11, (3, 1), generator=torch.Generator().manual_seed(0))
    first = model.training_pass(memory, words, torch.ones(3, 1) > 0)
    assert first.facts["history_first"] == 0.0
    assert first.facts["awc"] == pytest.approx(4 * EPSILON**0.5)


def test_plain_strategy_is_the_plain_transformer() -> None:
    plain = Transformer(TransformerConfig(**SMALL), in_width=WIDTH, vocabulary=11)
    model = built(strategy="tca", gamma=0.0)
    model.load_state_dict(plain.state_dict())
    features, words = random_features(3), torch.full((3, 4), 5)
    torch.testing.assert_close(
        model(model.encode(features), words), plain(plain.encode(features), words)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "all"}, "wanted one of tca, ohc"),
        ({"constraint_norm": "l1"}, "wanted one of rms"),
        ({"strategy": "light", "shared": False}, "no second pass"),
        ({"strategy": "ohc"}, "-o model.gamma=0"),
        ({"beta": 1.0}, "0 < beta < 1"),
        ({"heads": 3}, "multiple of model.heads"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptionError, match=message):
        replace(CATConfig(**SMALL), **changes)


def test_a_remembered_context_is_normed() -> None:
    with pytest.raises(CaptionError, match="model.norm is 'sum'"):
        MeshedCATConfig(norm="sum")
    assert MeshedCATConfig(norm="sum", strategy="tca", gamma=0.0).norm == "sum"
