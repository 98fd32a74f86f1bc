"""Views of a photograph to train on beside the whole of it: mirrored, or a part of it.

A network's features of a mirrored picture are other numbers than the mirrored features; so each
view is extracted for itself, into a cache of its own.
"""

from __future__ import annotations

import re
import zlib

import numpy as np

from extract.errors import ExtractError

WHOLE, MIRRORED = "whole", "mirrored"
_CROPPED = re.compile(r"cropped(-\d+)?")
_SHARES = (0.72, 0.95)  # of each side that a part has


def check_view(view: str) -> None:
    """Raise ExtractError unless there is such a view."""
    if view not in (WHOLE, MIRRORED) and _CROPPED.fullmatch(view) is None:
        raise ExtractError(
            f"view is {view!r}, wanted one of whole, mirrored, cropped, cropped-2, cropped-3 .."
        )


def view_of(pixels: np.ndarray, view: str, image_id: str) -> np.ndarray:
    """The view (h, w, 3) of an upright picture (H, W, 3).

    `cropped` is a part with 72 to 95 % of each side, somewhere in the picture, mirrored for half
    of the images. The image's id decides, so a view is the same each time; `cropped-2`, `cropped-3`
    and so on are other such parts.
    """
    if view == WHOLE:
        return pixels
    if view == MIRRORED:
        return pixels[:, ::-1]
    draw = np.random.default_rng(zlib.crc32(f"{view} {image_id}".encode()))
    share, *corner = draw.uniform(_SHARES[0], _SHARES[1]), draw.random(), draw.random()
    high, wide = (max(1, round(side * share)) for side in pixels.shape[:2])
    top, left = (
        round((side - kept) * place)
        for side, kept, place in zip(pixels.shape[:2], (high, wide), corner, strict=True)
    )
    part = pixels[top : top + high, left : left + wide]  # (h, w, 3)
    return part[:, ::-1] if draw.random() < 0.5 else part
