"""What a command does when it is one of several processes, or is told to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SOME_FAILED = 3  # exit code: done, but some images failed


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let SIGTERM end the work within as Ctrl-C does, keeping what is ready.

    `torchrun` sends it to the others when a process dies, and schedulers before they kill.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def own_device(device: torch.device) -> torch.device:
    """Of several GPUs the one of this process, by `torchrun`'s LOCAL_RANK; else as given."""
    local = os.environ.get("LOCAL_RANK", "")
    if device.type != "cuda" or device.index is not None or not local.isdecimal():
        return device
    return torch.device("cuda", int(local) % torch.cuda.device_count())
