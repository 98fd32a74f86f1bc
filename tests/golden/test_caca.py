"""Context-assisted attention against golden values of an independent reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from caption.models.context_assisted import ContextAssisted, Sources, distance
from caption.transformer import PlainCrossAttention, TransformerConfig

PARTS = {"query": "fc_q", "key": "fc_k", "value": "fc_v", "output": "fc_o"}


def cases(golden_dir: Path) -> list[Path]:
    folder = golden_dir / "grid" / "caca_reading"
    if not folder.is_dir():
        pytest.skip(f"no golden cases in {folder}")
    found = sorted(folder.iterdir())
    assert found
    return found


def fill(attention: PlainCrossAttention, weights: dict[str, Tensor], mark: str = "") -> None:
    named = {"add_norm.norm": f"layer_norm{mark}"}
    named |= {f"attention.{own}": f"attention{mark}.{other}" for own, other in PARTS.items()}
    attention.load_state_dict(
        {
            f"{own}.{kind}": weights[f"{other}.{kind}"]
            for own, other in named.items()
            for kind in ("weight", "bias")
        }
    )


def build(case: Path, mode: str) -> ContextAssisted:
    sizes = json.loads((case / "config.json").read_text())
    config = TransformerConfig(width=sizes["d_model"], heads=sizes["h"], dropout=0.0)
    weights = load_file(case / "weights.safetensors")
    strategy, _, separate = mode.partition("_")
    inner, second = PlainCrossAttention(config), PlainCrossAttention(config)
    fill(inner, weights)
    fill(second, weights, "2")
    return ContextAssisted(inner, strategy, second if separate else None)


def modes(outputs: dict[str, Tensor]) -> list[str]:
    return sorted({name.split(".")[0] for name in outputs})


def sources_of(module: ContextAssisted, inputs: dict[str, Tensor]) -> Sources:
    return module.prepare(inputs["visual"], inputs["visual_mask"] == 0)


def test_contexts_and_weights_of_every_mode(golden_dir: Path) -> None:
    for case in cases(golden_dir):
        inputs = load_file(case / "inputs.safetensors")
        outputs = load_file(case / "outputs.safetensors")
        assert modes(outputs)
        for mode in modes(outputs):
            module = build(case, mode)
            sources = sources_of(module, inputs)
            context, history = module(inputs["queries"], sources, None)
            found = {"context": context, "history_weight": history.weight}
            if not mode.startswith("light"):
                found["temporary_context"] = module.temporary(inputs["queries"], sources)
            rows, past = module.weights(inputs["queries"], sources, None)
            only = mode.startswith("ohc")
            found["probs"] = past if only else torch.cat([rows, past], dim=-1)
            wanted = {n: v for n, v in outputs.items() if n.startswith(f"{mode}.")}
            for name, value in wanted.items():
                if ".awc_" not in name:
                    mine = found[name.split(".")[1]]
                    torch.testing.assert_close(mine, value, atol=1e-5, rtol=1e-5, msg=name)


def test_step_by_step_of_every_mode(golden_dir: Path) -> None:
    for case in cases(golden_dir):
        inputs = load_file(case / "inputs.safetensors")
        outputs = load_file(case / "outputs.safetensors")
        for mode in modes(outputs):
            module = build(case, mode)
            sources, past = sources_of(module, inputs), None
            for place in range(inputs["queries"].shape[1]):
                word = inputs["queries"][:, place : place + 1]
                context, past = module(word, sources, past)
                wanted = outputs[f"{mode}.context"][:, place : place + 1]
                torch.testing.assert_close(context, wanted, atol=1e-5, rtol=1e-5, msg=mode)


def test_adaptive_weight_constraint_per_head(golden_dir: Path) -> None:
    norms = {"rms": "rms", "mse": "mse", "abs": "abs", "l2": "seq_l2"}
    for case in cases(golden_dir):
        inputs = load_file(case / "inputs.safetensors")
        outputs = load_file(case / "outputs.safetensors")
        beta = load_file(case / "weights.safetensors")["beta"]
        for norm, name in norms.items():
            found = distance(
                outputs["chc.history_weight"][None],
                beta[None],
                inputs["valid_tokens"] == 1,
                norm,
            )
            wanted = outputs[f"chc.awc_{name}_per_head"][None]
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5, msg=norm)
