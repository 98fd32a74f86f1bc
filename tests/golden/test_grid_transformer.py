"""The skeleton against golden values of the plain Transformer of the RSTNet release.

That release norms every attention twice and has a fixed random table of positions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from caption.captioner import Captioner
from caption.decode import beam_search, greedy
from caption.features import Features
from caption.losses import cross_entropy, self_critical, word_log_probs
from caption.transformer import Transformer, TransformerConfig
from caption.vocabulary import BOS, EOS, PAD

CPU = torch.device("cpu")
STEPS = 20  # of the golden decoding
BUILDERS = {"transformer"}  # kinds of golden models that have a captioner here
ATTENTION = {"query": "fc_q", "key": "fc_k", "value": "fc_v", "output": "fc_o"}
FEED_FORWARD = {"expand": "fc1", "contract": "fc2", "add_norm.norm": "layer_norm"}


def attention_names(own: str, own_norm: str, other: str, other_outer: str) -> dict[str, str]:
    names = {f"{own}.{a}": f"{other}.attention.{b}" for a, b in ATTENTION.items()}
    return {**names, f"{own_norm}.norm": f"{other}.layer_norm", f"{own_norm}.outer": other_outer}


def official_names(encoder_layers: int, decoder_layers: int) -> dict[str, str]:
    """Our module -> theirs, of every module that has a weight and a bias."""
    names = {"features.project": "encoder.fc", "features.norm": "encoder.layer_norm"}
    for n in range(encoder_layers):
        own, other = f"encoder.{n}", f"encoder.layers.{n}"
        names |= attention_names(
            f"{own}.self_attention.attention",
            f"{own}.add_norm",
            f"{other}.mhatt",
            f"{other}.lnorm",
        )
        names |= {f"{own}.feed_forward.{a}": f"{other}.pwff.{b}" for a, b in FEED_FORWARD.items()}
    for n in range(decoder_layers):
        own, other = f"decoder.{n}", f"decoder.layers.{n}"
        names |= attention_names(
            f"{own}.self_attention", f"{own}.add_norm", f"{other}.self_att", f"{other}.lnorm1"
        )
        cross = f"{own}.cross_attention"
        names |= attention_names(
            f"{cross}.attention", f"{cross}.add_norm", f"{other}.enc_att", f"{other}.lnorm2"
        )
        names |= {f"{own}.feed_forward.{a}": f"{other}.pwff.{b}" for a, b in FEED_FORWARD.items()}
    return names


@dataclass
class Case:
    """One golden case with our model filled with its weights."""

    name: str
    model: Transformer
    names: dict[str, str]  # our parameter -> theirs
    features: Features
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    config: dict[str, Any]
    grad_norms: dict[str, dict[str, float | None]]

    def close(self, found: Tensor, name: str, wanted: Tensor | None = None) -> None:
        """Within the tolerance that the case states for an output."""
        noise = self.config["f32_vs_f64_max_abs"].get(name, 0.0)
        wanted = self.outputs[name] if wanted is None else wanted
        limit = max(1e-4, 3 * noise)
        worst = float((found.detach() - wanted).abs().max())
        assert worst <= limit, f"{self.name}: {name} differs by {worst}, wanted <= {limit}"


def load(folder: Path) -> Case:
    sizes = json.loads((folder / "config.json").read_text())
    inputs = load_file(folder / "inputs.safetensors")
    weights = load_file(folder / "weights.safetensors")
    config = TransformerConfig(
        stream="grids",
        width=sizes["d_model"],
        heads=sizes["h"],
        **widths(sizes),
        feed_forward=sizes["d_ff"],
        encoder_layers=sizes["n_enc"],
        decoder_layers=sizes["n_dec"],
        dropout=0.0,
        max_words=sizes["max_len"],
        double_norm=True,
    )
    model = Transformer(config, in_width=sizes["d_in"], vocabulary=sizes["vocab_size"])
    names = {"words.weight": "decoder.word_emb.weight", "output.weight": "decoder.fc.weight"}
    for own, other in official_names(sizes["n_enc"], sizes["n_dec"]).items():
        names |= {f"{own}.{kind}": f"{other}.{kind}" for kind in ("weight", "bias")}
    tensors = {own: weights.pop(other) for own, other in names.items()}
    tensors["positions"] = weights.pop("decoder.pos_emb.weight")
    assert not weights, sorted(weights)  # every official number has its place
    model.load_state_dict(tensors)
    rows = inputs["grids"]  # (B, N, D)
    mask = rows.sum(dim=-1) != 0  # (B, N): the release's rule
    features = Features(
        rows={"grids": rows},
        mask={"grids": mask},
        boxes={"grids": torch.zeros(*mask.shape, 4)},
        sizes=torch.ones(len(rows), 2),
        grid_shape={},
    )
    return Case(
        name=f"{folder.parent.name}/{folder.name}",
        model=model.eval(),
        names=names,
        features=features,
        inputs=inputs,
        outputs=load_file(folder / "outputs.safetensors"),
        config=sizes,
        grad_norms=json.loads((folder / "grad_norms.json").read_text()),
    )


def widths(sizes: dict[str, Any]) -> dict[str, int]:
    if sizes["d_k"] == sizes["d_v"] == sizes["d_model"] // sizes["h"]:
        return {}
    return {"head_width": sizes["d_k"], "value_width": sizes["d_v"]}


@pytest.fixture(scope="module")
def cases(golden_dir: Path) -> list[Case]:
    folder = golden_dir / "grid" / "transformer"
    if not folder.is_dir():
        pytest.skip(f"no golden cases in {folder}")
    found = [load(path) for path in sorted(folder.iterdir())]
    assert found
    return found


def test_encoder(cases: list[Case]) -> None:
    for case in cases:
        memory = case.model.encode(case.features)
        real = memory.mask[..., None]  # (B, N, 1): what a padded row holds nobody reads
        assert torch.equal(~memory.mask, case.outputs["mask_enc"][:, 0, 0] == 1)
        case.close(memory.levels[-1] * real, "enc_output", case.outputs["enc_output"] * real)
        for n, level in enumerate(memory.levels):
            name = f"enc.layers.{n}.call0"
            case.close(level * real, name, case.outputs[name] * real)


def test_decoder_layers_and_logits(cases: list[Case]) -> None:
    for case in cases:
        tokens = case.inputs["captions"]
        real = (tokens != PAD)[..., None]  # (R, T, 1)
        model = case.model
        state = model.start(model.encode(case.features))
        x = model.words(tokens) + model.positions[1 : tokens.shape[1] + 1]
        for n, (layer, source) in enumerate(zip(model.decoder, state.sources, strict=True)):
            x, _ = layer(x, source, None)
            case.close(x * real, f"dec.layers.{n}", case.outputs[f"dec.layers.{n}"] * real)
        logits = model(model.encode(case.features), tokens)
        case.close(logits * real, "tf_logits", case.outputs["tf_logits"] * real)


def test_steps(cases: list[Case]) -> None:
    for case in cases:
        tokens, wanted = case.inputs["captions"], case.outputs["step_forced_logprobs"]
        state = case.model.start(case.model.encode(case.features))
        for place in range(tokens.shape[1]):
            found, state = case.model.step(tokens[:, place], state)
            real = (tokens[:, place] != PAD)[:, None]
            case.close(found * real, "step_forced_logprobs", wanted[:, place] * real)


def test_greedy(cases: list[Case]) -> None:
    for case in cases:
        state = case.model.start(case.model.encode(case.features))
        images = len(case.inputs["grids"])
        found = greedy(case.model.step, state, images, STEPS, CPU)
        wanted = to_end(case.outputs["greedy_tokens"])
        assert torch.equal(filled(found.tokens[:, 0]), wanted), case.name
        table = case.outputs["greedy_logprobs"]  # (B, T, V)
        chosen = table.gather(2, wanted[..., None])[..., 0] * (wanted != PAD)
        case.close(filled(found.log_probs[:, 0], 0.0), "greedy_logprobs", chosen)


@pytest.mark.parametrize("beams", [1, 5])
def test_beam_search(cases: list[Case], beams: int) -> None:
    for case in cases:
        state = case.model.start(case.model.encode(case.features))
        images = len(case.inputs["grids"])
        found = beam_search(case.model.step, state, images, beams, STEPS, CPU)
        wanted = to_end(case.outputs[f"beam{beams}_tokens"].view(images, beams, STEPS))
        assert torch.equal(filled(found.tokens), wanted), case.name
        log_probs = case.outputs[f"beam{beams}_logprobs"].view(images, beams, STEPS)
        case.close(filled(found.log_probs, 0.0), f"beam{beams}_logprobs", log_probs)
        if beams == 5:
            case.close(found.scores, "beam5_scores")
            best = to_end(case.outputs["beam5_top_tokens"])
            assert torch.equal(filled(found.tokens)[:, 0], best), case.name


def test_cross_entropy_and_its_gradients(cases: list[Case]) -> None:
    for case in cases:
        tokens = case.inputs["captions"]
        model = case.model
        model.zero_grad()
        logits = model(model.encode(case.features), tokens[:, :-1])
        loss = cross_entropy(logits, tokens[:, 1:])
        case.close(loss, "xe_loss", case.outputs["xe_loss"][0])
        loss.backward()
        same_gradients(case, model, case.grad_norms["xe"])


def test_self_critical_loss_and_its_gradients(cases: list[Case]) -> None:
    for case in cases:
        rewards = case.inputs["scst_reward"]  # (B, K)
        images, beams = rewards.shape
        model = case.model
        model.zero_grad()
        tokens = to_end(case.outputs["beam5_tokens"]).flatten(0, 1)  # (R, T)
        first = tokens.new_full((len(tokens), 1), BOS)
        memory = model.encode(case.features)
        logits = model(memory, torch.cat([first, tokens[:, :-1]], dim=1))
        advantage = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
        loss = self_critical(word_log_probs(logits, tokens), advantage, STEPS)
        case.close(loss, "scst_loss", case.outputs["scst_loss"][0])
        loss.backward()
        same_gradients(case, model, case.grad_norms["scst"])


def test_other_kinds_of_golden_cases(golden_dir: Path) -> None:
    folders = [p.name for p in (golden_dir / "grid").iterdir() if p.is_dir()]
    others = sorted(set(folders) - BUILDERS - {"caca_reading"})
    for name in others:
        for path in (golden_dir / "grid" / name).iterdir():
            assert (path / "weights.safetensors").is_file(), f"{path} is no golden case"
    if others:
        pytest.skip(f"golden cases of models that have no captioner here: {', '.join(others)}")


def same_gradients(
    case: Case, model: Captioner, wanted: dict[str, float | None], relative: float = 1e-3
) -> None:
    """L2 norms of all gradients, by official name."""
    own = dict(model.named_parameters())
    for name, official in case.names.items():
        gradient, norm = own[name].grad, wanted[official]
        assert (gradient is None) == (norm is None), official
        if gradient is not None and norm is not None:
            assert float(gradient.norm()) == pytest.approx(norm, rel=relative, abs=1e-5), official


def to_end(tokens: Tensor) -> Tensor:
    """Official tokens (.., T) with padding behind the end."""
    ended = (tokens == EOS).cumsum(dim=-1) - (tokens == EOS).long()  # 1 and more behind the end
    return tokens.masked_fill(ended > 0, PAD)


def filled(found: Tensor, value: float = PAD) -> Tensor:
    """(.., t) with `value` up to the length of the golden decoding."""
    return torch.nn.functional.pad(found, (0, STEPS - found.shape[-1]), value=value)
