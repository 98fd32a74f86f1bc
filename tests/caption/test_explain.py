"""Attributions that add up, and maps that are what the model mixed its values with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from caption.captioner import Captioner
from caption.errors import CaptionError
from caption.explain import TOLERANCE, Looks, integrated_gradients, look, scaled
from caption.features import Features
from caption.models import meshed_memory
from caption.models.context_assisted import (
    CATConfig,
    ContextAssistedTransformer,
    MeshedCATConfig,
)
from caption.transformer import Transformer, TransformerConfig
from caption.vocabulary import BOS, EOS
from tests.caption.toy import WIDTH, random_features

WORDS = 11
SMALL: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "feed_forward": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "dropout": 0.1,
}
CAPTION = torch.tensor([BOS, 5, 7, 6, EOS])


class OfOneForm(Captioner):
    """log p of a word is a function of one linear form of the rows: attributions are known."""

    needs = ("grids",)

    def __init__(self) -> None:
        super().__init__()
        self.form = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
        self.masks: list[Tensor] = []

    def encode(self, features: Features) -> Tensor:
        self.masks.append(features.mask["grids"])
        return (features.rows["grids"] @ self.form).sum(dim=1)  # (B,)

    def forward(self, memory: Tensor, tokens: Tensor) -> Tensor:
        logits = torch.zeros(len(memory), tokens.shape[1], WORDS)
        word = torch.nn.functional.one_hot(torch.tensor(5), WORDS)
        return logits + memory[:, None, None] * word

    def start(self, memory: Tensor) -> Any:
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> Any:
        raise NotImplementedError


def one_image(rows: int = 5) -> Features:
    return random_features(1, rows=rows)


def captioner(kind: str, **changes: Any) -> Transformer:
    torch.manual_seed(3)
    model: Transformer
    if kind == "cat":
        config = CATConfig(**{**SMALL, **changes})
        model = ContextAssistedTransformer(config, in_width=WIDTH, vocabulary=WORDS)
    elif kind == "meshed":
        meshed = MeshedCATConfig(**{**SMALL, "stream": "grids", "memory": 3, **changes})
        slots = meshed_memory.SLOTS
        model = ContextAssistedTransformer(meshed, in_width=WIDTH, vocabulary=WORDS, slots=slots)
    else:
        model = Transformer(TransformerConfig(**SMALL), in_width=WIDTH, vocabulary=WORDS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def test_attributions_of_a_linear_form_are_its_terms_shares() -> None:
    model, features = OfOneForm(), one_image()
    found = integrated_gradients(model, features, CAPTION)
    terms = features.rows["grids"][0] @ model.form  # (N,)
    wanted = terms[None] / terms.sum() * found.gained[:, None]
    torch.testing.assert_close(found.scores["grids"], wanted, atol=1e-4, rtol=1e-4)
    assert bool(found.complete.all()) and float(found.error.max()) < 1e-4


def test_the_mask_of_real_rows_stays_on_the_baseline() -> None:
    model, features = OfOneForm(), random_features(2, rows=5)
    second = Features(
        rows={"grids": features.rows["grids"][1:]},
        mask={"grids": features.mask["grids"][1:]},
        boxes={"grids": features.boxes["grids"][1:]},
        sizes=features.sizes[1:],
        grid_shape={},
    )
    integrated_gradients(model, second, CAPTION)
    for mask in model.masks:
        assert torch.equal(mask, second.mask["grids"].expand_as(mask))


@pytest.mark.parametrize("kind", ["transformer", "cat"])
def test_attributions_add_up_to_what_the_image_gains(kind: str) -> None:
    model, features = captioner(kind), one_image()
    found = integrated_gradients(model, features, CAPTION)
    assert found.scores["grids"].shape == (4, 5)
    empty = scaled(features, torch.tensor([0.0]))
    with torch.no_grad():
        a = model(model.encode(features), CAPTION[None, :-1]).log_softmax(-1)[0]
        b = model(model.encode(empty), CAPTION[None, :-1]).log_softmax(-1)[0]
    gained = (a - b).gather(1, CAPTION[1:, None])[:, 0]
    torch.testing.assert_close(found.gained, gained)
    added = found.scores["grids"].sum(dim=1)
    torch.testing.assert_close(added, gained, atol=TOLERANCE, rtol=TOLERANCE)
    assert found.steps >= 50 and not any(p.grad is not None for p in model.parameters())


def test_a_path_too_coarse_is_not_complete() -> None:
    found = integrated_gradients(captioner("transformer"), one_image(), CAPTION, steps=5, most=5)
    assert found.steps == 5 and not bool(found.complete.all())
    assert float(found.error.max()) > TOLERANCE


def looks(kind: str, **changes: Any) -> tuple[Looks, Transformer, Features]:
    model, features = captioner(kind, **changes), one_image()
    return look(model, features, CAPTION), model, features


def test_attention_of_a_plain_captioner_adds_up_to_one() -> None:
    found, model, features = looks("transformer")
    assert found.attention.shape == (3, 1, 2, 4, 5)
    torch.testing.assert_close(found.attention.sum(-1), torch.ones(3, 1, 2, 4))
    torch.testing.assert_close(found.rows().sum(-1), torch.ones(4))
    assert found.history is None and found.gates is None and found.memory is None
    with torch.no_grad():
        logits = model(model.encode(features), CAPTION[None, :-1])
    wanted = logits.log_softmax(-1)[0].gather(1, CAPTION[1:, None])[:, 0]
    torch.testing.assert_close(found.log_probs, wanted)


def test_attention_of_a_history_reading_captioner_adds_up_with_its_history() -> None:
    found, model, features = looks("cat")
    assert isinstance(model, ContextAssistedTransformer) and found.history is not None
    assert found.history.shape == (3, 1, 2, 4, 4)
    total = found.attention.sum(-1) + found.history.sum(-1)
    torch.testing.assert_close(total, torch.ones(3, 1, 2, 4))
    with torch.no_grad():
        _, weight = model.history_weight(model.encode(features), CAPTION[None, :-1])
    mass = found.history_weight()
    assert mass is not None
    torch.testing.assert_close(mass, weight[:, 0].mean(dim=1))  # (L, T)


def test_gates_and_memory_of_a_meshed_captioner() -> None:
    found, model, features = looks("meshed", strategy="tca", gamma=0.0)
    assert found.attention.shape == (3, 2, 2, 4, 5)  # two encoder levels
    assert found.gates is not None and found.memory is not None
    layer: Any = model.decoder[0]
    with torch.no_grad():
        x = model.words(CAPTION[None, :-1]) + model.positions[1:5]
        mask = torch.ones(1, 4, 4).tril().bool()
        words = layer.self_attention.project(x)
        x = layer.add_norm(x, layer.self_attention(x, words, mask))
        sources = model.start(model.encode(features)).sources[0]
        contexts = [layer.cross_attention(x, source, None)[0] for source in sources]
        wanted = layer.wiring.alphas(x, contexts)[:, 0].mean(dim=-1)  # (E, T)
        torch.testing.assert_close(found.gates[0], wanted)
        encoder: Any = model.encoder[0]
        rows, image = model.features(features)
        source, real = encoder.self_attention.source(rows, image)
        every = encoder.self_attention.attention.weights(rows, source, real[:, None])
    torch.testing.assert_close(found.memory[0], every[0, :, :, -3:].sum(-1).mean(-1))
    assert bool((found.gates > 0).all() and (found.gates < 1).all())


def test_each_level_of_a_meshed_captioner_has_its_own_history() -> None:
    found, model, features = looks("meshed")
    assert isinstance(model, ContextAssistedTransformer) and found.history is not None
    assert found.history.shape == (3, 2, 2, 4, 4)
    assert not torch.allclose(found.history[:, 0], found.history[:, 1])
    with torch.no_grad():
        _, weight = model.history_weight(model.encode(features), CAPTION[None, :-1])
    levels = found.history.sum(dim=-1).mean(dim=1)  # (L, H, T)
    torch.testing.assert_close(weight[:, 0], levels)


def test_maps_show_where_the_values_come_from() -> None:
    found, model, features = looks("transformer")
    layer: Any = model.decoder[0]
    with torch.no_grad():
        state = model.start(model.encode(features))
        x = model.words(CAPTION[None, :-1]) + model.positions[1:5]
        words = layer.self_attention.project(x)
        mask = torch.ones(1, 4, 4).tril().bool()
        x = layer.add_norm(x, layer.self_attention(x, words, mask))
        values = state.sources[0].rows.values  # (1, H, N, d)
        mixed = found.attention[0, 0][None] @ values  # (1, H, T, d)
        attention = layer.cross_attention.attention
        torch.testing.assert_close(
            attention.join(mixed, x), attention(x, state.sources[0].rows, None)
        )


def test_a_captioner_without_attention_is_refused() -> None:
    with pytest.raises(CaptionError, match="OfOneForm has no attention maps"):
        look(OfOneForm(), one_image(), CAPTION)
