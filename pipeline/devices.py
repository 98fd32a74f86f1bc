"""Where the tensors are: the device asked for, and that of one of several processes."""

from __future__ import annotations

import os

import torch

from pipeline.errors import WrongUsage


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU. Raises WrongUsage when it is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(name, False):
        raise WrongUsage(
            f"--device {name} is not available here; there is"
            f" {', '.join(k for k, v in there.items() if v)}"
        )
    return torch.device(name)


def own_device(device: torch.device) -> torch.device:
    """Of several GPUs the one of this process, by `torchrun`'s LOCAL_RANK; else as given."""
    local = os.environ.get("LOCAL_RANK", "")
    if device.type != "cuda" or device.index is not None or not local.isdecimal():
        return device
    return torch.device("cuda", int(local) % torch.cuda.device_count())
