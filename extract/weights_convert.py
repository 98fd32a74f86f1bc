"""Checkpoints of any readable form as safetensors, with a JSON beside that says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save

from extract.checkpoint import read_checkpoint
from extract.durable import replacing_large, write_text
from extract.errors import ExtractError
from extract.imagenet import sha256_of


def convert(source: Path, out: Path) -> dict[str, Any]:
    """Write all tensors of a checkpoint under their own names; returns the JSON's content.

    `out` ends in `.safetensors`, the JSON has its name with `.json`. Raises ExtractError.
    """
    if out.suffix != ".safetensors":
        raise ExtractError(f"{out}: wanted a name that ends in .safetensors")
    beside = out.with_suffix(".json")
    for path in (out, beside):
        if path.exists():
            raise ExtractError(f"{path} is there already; give another --out, or remove it first")
    tensors = {name: tensor.contiguous() for name, tensor in read_checkpoint(source).items()}
    tensors = {name: t.clone() if _shared(t) else t for name, t in tensors.items()}
    facts = {
        "source": source.name,
        "source_sha256": sha256_of(source),
        "tensors": {k: {"shape": list(t.shape), "dtype": str(t.dtype)} for k, t in tensors.items()},
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "versions": {"torch": torch.__version__, "safetensors": safetensors.__version__},
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing_large(out) as temporary:
            # `save_file` would put another file there, unlocked and for nobody else to read
            temporary.write_bytes(save(tensors))
            facts["sha256"] = sha256_of(temporary)
            write_text(beside, json.dumps(facts, indent=1))
    except OSError as error:
        raise ExtractError(
            f"{out}: cannot be written ({error.strerror or error}); make room there"
        ) from error
    return facts


def _shared(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a part of a larger memory, which safetensors refuses."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
