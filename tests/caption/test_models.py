"""What every registered captioner, and every variant of it, must do."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from caption import checkpoint
from caption.captioner import Captioner
from caption.constrained import Machine, constrained_beam_search
from caption.decode import beam_search, greedy
from caption.features import Features
from caption.losses import cross_entropy
from caption.registry import MODELS, variants
from caption.vocabulary import BOS, EOS, PAD
from tests.caption.toy import WIDTH, no_gradients, random_features

WORDS = 11
SMALL = {
    "width": 16,
    "heads": 2,
    "feed_forward": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
    "max_words": 12,
}

STREAMS = ("grids", "regions", "pyramid_high", "pyramid_low")

pytestmark = pytest.mark.parametrize("name", list(variants()))


def build(name: str, **changes: object) -> Captioner:
    registered, keys = variants()[name]
    entry = MODELS[registered]
    known = {field.name for field in fields(entry.config)}
    settings = {key: value for key, value in {**SMALL, **keys, **changes}.items() if key in known}
    torch.manual_seed(3)
    model = entry.build(entry.config(**settings), {stream: WIDTH for stream in STREAMS}, WORDS)
    with torch.no_grad():
        for parameter in model.parameters():  # away from zero biases and unit gains
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def tokens(rows: int, length: int = 6, seed: int = 5) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(4, WORDS, (rows, length), generator=random)
    words[:, 0] = BOS
    return words


def only(features: Features, image: int) -> Features:
    """One image of a batch, with its real rows."""
    rows = {name: int(mask[image].sum()) for name, mask in features.mask.items()}

    def cut(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t[image : image + 1, : rows[name]] for name, t in tensors.items()}

    return replace(
        features,
        rows=cut(features.rows),
        mask=cut(features.mask),
        boxes=cut(features.boxes),
        sizes=features.sizes[image : image + 1],
        grid_shape={name: (shapes[image],) for name, shapes in features.grid_shape.items()},
    )


def test_shapes(name: str) -> None:
    model = build(name)
    memory = model.encode(random_features(3))
    assert model(memory, tokens(6)).shape == (6, 6, WORDS)
    log_probs, state = model.step(torch.full((3,), BOS), model.start(memory))
    assert log_probs.shape == (3, WORDS)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3))
    assert model.step(torch.full((6,), 5), state.reorder(torch.tensor([0, 0, 1, 1, 2, 2])))


def test_words_do_not_see_later_words(name: str) -> None:
    model = build(name)
    memory = model.encode(random_features(3))
    first = tokens(3)
    second = first.clone()
    second[:, 4:] = (second[:, 4:] - 4 + 1) % (WORDS - 4) + 4
    a, b = model(memory, first), model(memory, second)
    torch.testing.assert_close(a[:, :4], b[:, :4])
    assert (a[:, 4:] - b[:, 4:]).abs().max() > 1e-3


def test_steps_equal_teacher_forcing(name: str) -> None:
    model = build(name)
    memory = model.encode(random_features(3))
    words = tokens(6)
    wanted = model(memory, words).log_softmax(-1)
    state = model.start(memory).reorder(torch.arange(3).repeat_interleave(2))
    for place in range(words.shape[1]):
        found, state = model.step(words[:, place], state)
        torch.testing.assert_close(found, wanted[:, place], atol=1e-5, rtol=1e-5)


def test_training_has_the_logits_of_the_words_that_are_predicted(name: str) -> None:
    model = build(name)
    memory, words = model.encode(random_features(3)), tokens(6)
    valid = torch.arange(6) < torch.tensor([6, 3, 4, 1, 2, 5])[:, None]
    found = model.training_pass(memory, words, valid).logits
    torch.testing.assert_close(found, model(memory, words)[valid])


def test_padding_rows_changes_nothing(name: str) -> None:
    model = build(name)
    features = random_features(2, rows=5)
    wider = random_features(2, rows=9, seed=1)
    for stream, rows in features.rows.items():
        count = rows.shape[1]
        wider.rows[stream][:, :count] = rows
        wider.boxes[stream][:, :count] = features.boxes[stream]
        wider.mask[stream][:] = False
        wider.mask[stream][:, :count] = features.mask[stream]
    wider = replace(wider, grid_shape=features.grid_shape)
    words = tokens(2)
    a = model(model.encode(features), words)
    torch.testing.assert_close(a, model(model.encode(wider), words), atol=1e-5, rtol=1e-5)


def test_hidden_rows_are_not_seen(name: str) -> None:
    model, words = build(name), tokens(2)
    features = random_features(2, rows=5)
    for mask in features.mask.values():
        mask[0, 1] = False
    a = model(model.encode(features), words)
    for rows in features.rows.values():
        rows[0, 1] += 5.0
    torch.testing.assert_close(a, model(model.encode(features), words), atol=1e-5, rtol=1e-5)


def test_a_batch_equals_its_images_one_by_one(name: str) -> None:
    model = build(name)
    features = random_features(3, rows=5)
    words = tokens(6)
    together = model(model.encode(features), words)
    for image in range(3):
        alone = model(model.encode(only(features, image)), words[2 * image : 2 * image + 2])
        torch.testing.assert_close(alone, together[2 * image : 2 * image + 2], atol=1e-5, rtol=1e-5)


def test_the_image_matters(name: str) -> None:
    model = build(name)
    words = tokens(3)
    a = model(model.encode(random_features(3, seed=0)), words)
    b = model(model.encode(random_features(3, seed=9)), words)
    assert (a - b).abs().max() > 1e-3


def test_one_beam_is_greedy(name: str) -> None:
    model = build(name)
    cpu = torch.device("cpu")
    with torch.no_grad():
        state = model.start(model.encode(random_features(3)))
        beam = beam_search(model.step, state, 3, 1, 8, cpu)
        best = greedy(model.step, state, 3, 8, cpu)
    assert torch.equal(beam.tokens, best.tokens)
    torch.testing.assert_close(beam.scores, best.scores)


def test_a_wide_beam_finds_the_likeliest_of_all_captions(name: str) -> None:
    model = build(name)
    every = torch.cartesian_prod(*[torch.arange(WORDS)] * 3)  # (R, 3)
    behind = (every == EOS).cumsum(dim=1) - (every == EOS).long() > 0  # (R, 3)
    with torch.no_grad():
        memory = model.encode(random_features(1))
        before = torch.cat([torch.full((len(every), 1), BOS), every[:, :-1]], dim=1)  # (R, 3)
        each = model(memory, before).log_softmax(-1).gather(2, every[..., None])[..., 0]  # (R, 3)
        beam = beam_search(model.step, model.start(memory), 1, WORDS**2, 3, torch.device("cpu"), 1)
    scores = each.masked_fill(behind, 0.0).sum(dim=1)  # (R,)
    best = int(scores.argmax())
    torch.testing.assert_close(beam.scores[0, 0], scores[best])
    found = beam.tokens[0, 0]
    assert torch.equal(found, every[best].masked_fill(behind[best], PAD)[: len(found)])


def test_constraints_are_held_and_none_is_beam_search(name: str) -> None:
    model = build(name)
    cpu, machines = torch.device("cpu"), [Machine.of([]), Machine.of([[(5, 6)], [(9,)]])]
    features = random_features(2)
    with torch.no_grad():
        state = model.start(model.encode(features))
        found = constrained_beam_search(model.step, state, machines, 2, 6, cpu)
        plain = beam_search(model.step, state, 2, 2, 6, cpu)
        alone = model.start(model.encode(only(features, 1)))
        second = constrained_beam_search(model.step, alone, machines[1:], 2, 6, cpu)
    length = min(found.tokens.shape[-1], plain.tokens.shape[-1])
    assert torch.equal(found.tokens[0, :, :length], plain.tokens[0, :, :length])
    torch.testing.assert_close(found.scores[0], plain.scores[0])
    said = found.tokens[1, 0].tolist()
    assert 9 in said and (5, 6) in zip(said, said[1:], strict=False)
    torch.testing.assert_close(second.scores[0], found.scores[1])


def test_saves_and_loads(name: str, tmp_path: Path) -> None:
    model, other = build(name), build(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    checkpoint.save(tmp_path / "best", model, {"epoch": 1}, None)
    assert checkpoint.load_model(tmp_path / "best", other) == {"epoch": 1}
    features, words = random_features(3), tokens(3)
    torch.testing.assert_close(
        model(model.encode(features), words), other(other.encode(features), words)
    )


def test_gradients_reach_every_parameter(name: str) -> None:
    model = build(name).train()
    words = tokens(6)
    memory = model.encode(random_features(3))
    valid = torch.ones_like(words[:, 1:]).bool()
    told = model.training_pass(memory, words[:, :-1], valid)
    loss = cross_entropy(told.logits, words[:, 1:][valid])
    (loss if told.penalty is None else loss + told.penalty).backward()
    assert no_gradients(model) == []
