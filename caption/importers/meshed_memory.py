"""The checkpoint and the vocabulary file of the Meshed-Memory release.

The checkpoint is a dictionary written by `torch.save`: weights under `state_dict`, beside the
optimizer and the states of three random generators, which are read over. Its eight
`running_*` buffers hold a decoding that was under way and are left out. The position table is
taken as stored: the release overwrites its sinusoids with random numbers.
"""

from __future__ import annotations

import codecs
import collections
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caption.errors import CaptionError
from caption.models.meshed_memory import MeshedMemoryConfig
from caption.vocabulary import Vocabulary

ROWS = 50  # regions per image in the release, zero rows included
HEADS = 8  # always; the release's option for it is not read
_ATTENTION = {"query": "fc_q", "key": "fc_k", "value": "fc_v", "output": "fc_o"}
_FEED_FORWARD = {"expand": "fc1", "contract": "fc2", "add_norm.norm": "layer_norm"}
_STATE = ("running_seq", "running_mask_self_attention", "running_keys", "running_values")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint of the release, by the release's names.

    Raises CaptionError when the file cannot be read, asks for more than arrays and plain values,
    or holds no `state_dict`.
    """
    try:
        with torch.serialization.safe_globals(_arrays()):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asked = re.search(r"(?:GLOBAL|class|operand) ([\w.]+\.\w+)", str(error))
        if asked is None:
            raise CaptionError(
                f"{path}: no PyTorch checkpoint; wanted the release's .pth, written by torch.save"
            ) from error
        raise CaptionError(
            f"{path}: refused, it asks for {asked[1]}; wanted tensors, arrays and plain values"
            " only, so get the file from its publisher again"
        ) from error
    except Exception as error:  # torch raises many kinds for a broken file
        raise CaptionError(f"{path}: no readable PyTorch checkpoint ({error})") from error
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not state:
        keys = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content)
        raise CaptionError(f"{path}: has no state_dict (found {keys}); no checkpoint of M2")
    return {
        name: tensor
        for name, tensor in state.items()
        if isinstance(tensor, Tensor) and name.rpartition(".")[2] not in _STATE
    }


def config_of(weights: Mapping[str, Tensor], heads: int = HEADS, rows: int = ROWS) -> Any:
    """The model's sizes, read off the weights. Raises CaptionError naming what is missing."""
    fixed = ("encoder.fc.weight", "decoder.word_emb.weight", "decoder.pos_emb.weight")
    attention = "encoder.layers.0.mhatt.attention"
    wanted = (*fixed, f"{attention}.fc_k.weight", "encoder.layers.0.pwff.fc1.weight")
    missing = [name for name in wanted if name not in weights]
    if missing:
        raise CaptionError(f"the checkpoint has no {', '.join(missing)}: it is not M2's")
    keys, values = (weights[f"{attention}.{name}.weight"].shape[0] for name in ("fc_k", "fc_v"))
    memory = weights.get(f"{attention}.m_k")
    return MeshedMemoryConfig(
        width=weights["decoder.word_emb.weight"].shape[1],
        heads=heads,
        head_width=keys // heads,
        value_width=values // heads,
        feed_forward=weights["encoder.layers.0.pwff.fc1.weight"].shape[0],
        encoder_layers=_layers(weights, "encoder"),
        decoder_layers=_layers(weights, "decoder"),
        max_words=weights["decoder.pos_emb.weight"].shape[0] - 1,
        positions="random",
        memory=0 if memory is None else memory.shape[1],
        rows=rows,
        attend_padding=True,
    )


def names(config: MeshedMemoryConfig) -> dict[str, str]:
    """Our name -> the release's, of every number of the model."""
    modules = {"features.project": "encoder.fc", "features.norm": "encoder.layer_norm"}
    plain = {
        "words.weight": "decoder.word_emb.weight",
        "positions": "decoder.pos_emb.weight",
        "output.weight": "decoder.fc.weight",
    }
    for n in range(config.encoder_layers):
        own, other = f"encoder.{n}", f"encoder.layers.{n}"
        modules |= _attention(f"{own}.self_attention.attention", f"{other}.mhatt")
        modules[f"{own}.add_norm.norm"] = f"{other}.mhatt.layer_norm"
        modules |= _feed_forward(own, other)
        if config.memory:
            for kind, mark in (("keys", "m_k"), ("values", "m_v")):
                plain[f"{own}.self_attention.memory_{kind}"] = f"{other}.mhatt.attention.{mark}"
    for n in range(config.decoder_layers):
        own, other = f"decoder.{n}", f"decoder.layers.{n}"
        modules |= _attention(f"{own}.self_attention", f"{other}.self_att")
        modules[f"{own}.add_norm.norm"] = f"{other}.self_att.layer_norm"
        modules |= _attention(f"{own}.cross_attention.attention", f"{other}.enc_att")
        modules[f"{own}.cross_attention.add_norm.norm"] = f"{other}.enc_att.layer_norm"
        for level in range(config.encoder_layers):
            modules[f"{own}.wiring.gates.{level}"] = f"{other}.fc_alpha{level + 1}"
        modules |= _feed_forward(own, other)
    for own, other in modules.items():
        plain |= {f"{own}.{kind}": f"{other}.{kind}" for kind in ("weight", "bias")}
    return plain


def renamed(weights: Mapping[str, Tensor], config: MeshedMemoryConfig) -> dict[str, Tensor]:
    """The weights by our names. Raises CaptionError listing what is missing and what is over."""
    wanted = names(config)
    missing = [f"missing {name}" for name in wanted.values() if name not in weights]
    known = set(wanted.values())
    over = [f"unexpected {name}" for name in weights if name not in known]
    if missing or over:
        shown = "\n  ".join([*missing, *over][:20])
        count = len(missing) + len(over)
        raise CaptionError(f"the checkpoint does not fit the model ({count}):\n  {shown}")
    return {own: weights[other].detach().clone() for own, other in wanted.items()}


def read_vocabulary(path: Path) -> Vocabulary:
    """The words of the release's `vocab.pkl`, in its order.

    Raises CaptionError when the file asks for anything but that one class and its dictionaries.
    """
    try:
        with path.open("rb") as file:
            words = getattr(_VocabularyUnpickler(file).load(), "itos", None)
    except _Refused as refused:
        raise CaptionError(
            f"{path}: refused, the pickle asks for {refused}; wanted the release's vocab.pkl"
        ) from refused
    except OSError as error:
        raise CaptionError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # broken pickles raise many kinds
        raise CaptionError(f"{path}: no readable pickle ({error})") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CaptionError(f"{path}: has no list of words `itos`; wanted the release's vocab.pkl")
    return Vocabulary(words)


def _layers(weights: Mapping[str, Tensor], part: str) -> int:
    places = [name.split(".")[2] for name in weights if name.startswith(f"{part}.layers.")]
    return 1 + max(int(place) for place in places) if places else 0


def _attention(own: str, other: str) -> dict[str, str]:
    return {f"{own}.{a}": f"{other}.attention.{b}" for a, b in _ATTENTION.items()}


def _feed_forward(own: str, other: str) -> dict[str, str]:
    return {f"{own}.feed_forward.{a}": f"{other}.pwff.{b}" for a, b in _FEED_FORWARD.items()}


def _arrays() -> list[Any]:
    """What pickled NumPy arrays and numbers are made of, under old and new names."""
    made_by = {"_reconstruct": np.zeros(0).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0]}
    kinds = [type(np.dtype(kind)) for kind in ("u4", "u1", "i4", "i8", "f4", "f8", "?")]
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")
    named = [(made, f"{module}.{name}") for name, made in made_by.items() for module in modules]
    return [np.ndarray, np.dtype, codecs.encode, *kinds, *named]


class _Refused(pickle.UnpicklingError):
    """The file asks for a class outside the list."""


class _Words:
    """Stands in for the release's vocabulary class."""


def _unknown_word() -> int:
    return 0


class _VocabularyUnpickler(pickle.Unpickler):
    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("data.vocab", "Vocab"): _Words,
        ("data.vocab", "_default_unk_index"): _unknown_word,
        ("collections", "Counter"): collections.Counter,
        ("collections", "defaultdict"): collections.defaultdict,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None
