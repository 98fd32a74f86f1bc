"""Is a file the checkpoint that it is taken for?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from extract.checkpoint import read_checkpoint
from extract.detector_extractor import build
from extract.detector_presets import DETECTOR_PRESETS
from extract.errors import WeightsError

_HELD_ONLY = (".caffemodel",)  # kept for other programs, not read by this one


def what_is_wrong(file: Path, name: str, presets: Sequence[str]) -> str | None:
    """Why the file is no checkpoint, or does not fit a network of its presets; None if it does.

    `name` is the checkpoint's file name. One without presets has to be readable only.
    """
    if name.endswith(_HELD_ONLY):
        return None
    with file.open("rb") as opened:
        head = opened.read(512).lstrip().lower()
    if not head or head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page" if head else "is an empty file"
    try:
        if not presets:
            read_checkpoint(file)
        for preset in {p.built: p for p in map(DETECTOR_PRESETS.__getitem__, presets)}.values():
            build(preset, file)
    except WeightsError as error:
        return str(error).removeprefix(f"{file}: ")
    return None
