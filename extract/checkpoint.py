"""Public checkpoints into our detectors: by content safetensors, PyTorch's, or pickled arrays.

Parameters are matched by name; what is missing, unexpected or of another shape is listed.
"""

from __future__ import annotations

import logging
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from extract.detector import Detector
from extract.errors import ExtractError, WeightsError
from extract.restricted_pickle import NotAPickle, load_arrays

_LOG = logging.getLogger(__name__)
_SHOWN = 8  # names of each kind in an error
_ANCHORS = "proposal_generator.anchor_generator.cell_anchors."
_DETECTION = ("proposal_generator.", "roi_heads.")
# parts of public checkpoints that extraction has no use for
_UNUSED = re.compile(
    r"(roi_heads\.(mask|keypoint)_(head|pooler)\.|.*num_batches_tracked$|pixel_(mean|std)$"
    r"|roi_heads\.mask_on|fc\.|pred_)"
)
_ATTRIBUTES = {  # the attribute head as each project calls it -> as grid-feats-vqa does
    "cls_embed": "obj_embed",  # bottom-up-attention.pytorch, mode caffe
    "attr_linear1": "fc.0",
    "attr_linear2": "attr_score",
    "cls_embedding": "obj_embed",  # py-bottom-up-attention
    "fc_attr": "fc.0",
    "attr_score": "attr_score",
}
_CAFFE2_PARTS = {"branch1": "shortcut", "branch2a": "conv1", "branch2b": "conv2"}
_CAFFE2_PARTS["branch2c"] = "conv3"
_TORCHVISION = {"conv1": "conv1", "conv2": "conv2", "conv3": "conv3", "downsample.0": "shortcut"}
_TORCHVISION |= {"bn1": "conv1.norm", "bn2": "conv2.norm", "bn3": "conv3.norm"}
_TORCHVISION["downsample.1"] = "shortcut.norm"


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by the file's own names. Raises WeightsError."""
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror or error})") from error
    if head[8:9] == b"{":
        try:
            return load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: not a readable safetensors file ({error})") from error
    content = _torch_content(path) if _is_torch(path) else _pickled_content(path)
    for key in ("model", "state_dict", "blobs"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path}: holds {type(content).__name__}, wanted tensors by name")
    tensors = {str(name): _tensor(value) for name, value in content.items()}
    found = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if not found:
        raise WeightsError(f"{path}: holds no tensors under {', '.join(list(content)[:_SHOWN])}")
    return found


def load_detector(detector: Detector, tensors: Mapping[str, Tensor], source: object) -> None:
    """Fill a detector with a checkpoint's tensors.

    Raises WeightsError that lists missing, unexpected and wrongly shaped parameters, and pixel
    means or deviations that are not the configuration's.
    """
    _check_pixels(detector, tensors, source)
    renamed = {_our_name(name): tensor for name, tensor in tensors.items()}
    headless = detector.roi_heads is None  # maps only: no proposals, no regions
    unused = [
        name
        for name in renamed
        if _UNUSED.match(name) or (headless and name.startswith(_DETECTION))
    ]
    given = {name: renamed[name] for name in renamed.keys() - set(unused)}
    if unused:
        _LOG.info("%s: %d tensors are of no use here, such as %s", source, len(unused), unused[0])
    own = detector.state_dict()
    fill(detector, given, source, optional=[name for name in own if name.startswith(_ANCHORS)])


def fill(
    network: nn.Module, given: Mapping[str, Tensor], source: object, optional: Iterable[str] = ()
) -> None:
    """Load tensors by name; all must be there but the optional ones, and no others."""
    own = network.state_dict()
    missing = [name for name in own if name not in given and name not in set(optional)]
    unexpected = [name for name in given if name not in own]
    shapes = [
        f"{name} {tuple(given[name].shape)}, wanted {tuple(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for kind, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", shapes),
        )
        if names
    ]
    if problems:
        raise WeightsError(f"{source}: does not fit the detector; parameters {'; '.join(problems)}")
    network.load_state_dict({k: v.to(own[k].dtype) for k, v in given.items()}, strict=False)


def resnet_names(tensors: Mapping[str, Tensor], source: object) -> dict[str, Tensor]:
    """A plain ResNet's tensors, named by Caffe2 or torchvision, as `extract.resnet` names them.

    Caffe2's norms have no statistics left: scale and shift say it all. The classifier is dropped.
    """
    caffe2 = "conv1_w" in tensors
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        ours = _from_caffe2(name) if caffe2 else _from_torchvision(name)
        if ours is not None:
            found[ours] = tensor
    if not found:
        raise WeightsError(
            f"{source}: no ResNet by its names, such as {', '.join(list(tensors)[:4])}; wanted"
            " torchvision's (layer1.0.conv1.weight) or Caffe2's (res2_0_branch2a_w)"
        )
    if caffe2:
        for name in [n for n in found if n.endswith(".norm.weight")]:
            stem = name.removesuffix("weight")
            found[f"{stem}running_mean"] = torch.zeros_like(found[name])
            found[f"{stem}running_var"] = torch.ones_like(found[name])
    return found


def _from_caffe2(name: str) -> str | None:
    kinds = {"_w": ".weight", "_bn_s": ".norm.weight", "_bn_b": ".norm.bias"}
    match = re.match(r"(?:res_)?(conv1|res(\d)_(\d+)_(branch\w+?))(_w|_bn_s|_bn_b)$", name)
    if match is None:
        return None
    kind = kinds[match[5]]
    if match[1] == "conv1":
        return f"stem.conv1{kind}"
    return f"res{match[2]}.{match[3]}.{_CAFFE2_PARTS[match[4]]}{kind}"


def _from_torchvision(name: str) -> str | None:
    if name.endswith("num_batches_tracked"):
        return None
    if match := re.match(r"(conv1|bn1)\.(\w+)$", name):
        return f"stem.conv1{'.norm' if match[1] == 'bn1' else ''}.{match[2]}"
    match = re.match(r"layer(\d)\.(\d+)\.((?:conv|bn)\d|downsample\.\d)\.(\w+)$", name)
    if match is None:
        return None
    return f"res{int(match[1]) + 1}.{match[2]}.{_TORCHVISION[match[3]]}.{match[4]}"


def _our_name(name: str) -> str:
    """A parameter of any of the projects under grid-feats-vqa's name."""
    name = name.removeprefix("module.")
    match = re.match(r"roi_heads\.box_predictor\.(\w+)\.(\w+)$", name)
    if match and match[1] in _ATTRIBUTES:
        return f"roi_heads.attribute_predictor.{_ATTRIBUTES[match[1]]}.{match[2]}"
    return name


def _check_pixels(detector: Detector, tensors: Mapping[str, Tensor], source: object) -> None:
    pixels = detector.config.pixels
    for name, wanted in (("pixel_mean", pixels.mean), ("pixel_std", pixels.std)):
        found = tensors.get(name)
        if found is None:
            continue
        values = [float(v) for v in found.flatten()]
        if not np.allclose(values, wanted, rtol=0, atol=1e-3):
            raise WeightsError(
                f"{source}: {name} is {[round(v, 4) for v in values]}, the preset's or"
                f" configuration's is {list(wanted)}"
            )


def _is_torch(path: Path) -> bool:
    """Whether PyTorch wrote the file: a zip since 1.6, before it a pickle of a magic number."""
    if zipfile.is_zipfile(path):
        return True
    with path.open("rb") as file:
        return b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" in file.read(64)


def _pickled_content(path: Path) -> Any:
    try:
        return load_arrays(path)
    except NotAPickle as error:
        raise WeightsError(
            f"{path}: no readable checkpoint: neither safetensors, nor PyTorch's, nor a whole"
            " pickle of arrays"
        ) from error
    except ExtractError as error:
        raise WeightsError(str(error)) from error


def _torch_content(path: Path) -> Any:
    allowed: list[Any] = [np.dtype, type(np.dtype(np.float32)), type(np.dtype(np.float64))]
    allowed += [type(np.dtype(np.int64)), np.float64(0).__reduce__()[0]]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asked = re.search(
            r"(?i)unsupported (?:global|class|operand):?\s+(?:GLOBAL\s+)?([\w.]+)", str(error)
        )
        if asked is None:
            raise WeightsError(f"{path}: not a readable PyTorch checkpoint") from error
        raise WeightsError(
            f"{path}: refused, the checkpoint asks for {asked[1]}; wanted tensors and plain values"
            " only"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path}: not a readable PyTorch checkpoint ({line})") from error


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        return torch.from_numpy(np.ascontiguousarray(value))
    return None
