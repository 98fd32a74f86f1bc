"""Given boxes: a JSON of image ids to boxes in pixels of the upright original."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from extract.errors import ExtractError, ImageError

_EXTRAS = {"classes": "objects", "attributes": "attributes", "scores": "scores"}  # JSON -> cache
_SLACK = 1.0  # pixels that a box may stand out of its image before it is an error


@dataclass(frozen=True)
class GivenBoxes:
    """The boxes of one file, checked image by image when asked for."""

    path: Path
    sha256: str
    entries: dict[str, Any] = field(repr=False)

    def of(
        self, image_id: str, file: object, width: int, height: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Boxes (N, 4) float32 clipped to the image, and what is known of each (N,).

        Raises ImageError on an image without boxes and on boxes that cannot be.
        """
        if image_id not in self.entries:
            raise ImageError(file, "no-boxes", f"{self.path} has no entry {image_id!r}")
        entry = self.entries[image_id]
        boxes = _numbers(listed(entry), np.float32)
        if boxes.size == 0:
            raise ImageError(file, "no-boxes", f"{self.path}: entry {image_id!r} lists none")
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all():
            raise ImageError(
                file,
                "bad-boxes",
                f"{self.path}: entry {image_id!r}: wanted [[x1, y1, x2, y2], ...]",
            )
        limits = np.array([width, height, width, height], dtype=np.float32)
        clipped = np.clip(boxes, 0, limits)  # (N, 4)
        wrong = (np.abs(clipped - boxes) >= _SLACK).any(axis=1)
        wrong |= (clipped[:, 2:] - clipped[:, :2] <= 0).any(axis=1)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise ImageError(
                file,
                "bad-boxes",
                f"{self.path}: entry {image_id!r}, box {first} is {boxes[first].tolist()}, wanted"
                f" x1 < x2 <= {width} and y1 < y2 <= {height}",
            )
        extras = {}
        for key, name in _EXTRAS.items():
            if isinstance(entry, dict) and key in entry:
                kind, wanted = (np.float32, "number") if key == "scores" else (np.int32, "integer")
                extras[name] = _numbers(entry[key], kind)
                if extras[name].shape != (len(boxes),) or not np.isfinite(extras[name]).all():
                    raise ImageError(
                        file,
                        "bad-boxes",
                        f"{self.path}: entry {image_id!r}: {key}: wanted {len(boxes)} values, one"
                        f" {wanted} a box",
                    )
        return clipped, extras


def listed(entry: Any) -> Any:
    """The boxes of an entry in either form."""
    return entry.get("boxes") if isinstance(entry, dict) else entry


def _numbers(values: Any, kind: type[np.generic]) -> np.ndarray:
    """As an array; one of shape () when these are no such numbers."""
    none = np.zeros((), dtype=kind)
    try:
        found = np.array(values)
    except ValueError:  # ragged lists
        return none
    if found.size == 0:
        return np.zeros(0, dtype=kind)
    fits = found.dtype.kind in ("iuf" if kind is np.float32 else "iu")
    return found.astype(kind) if fits else none


def read_boxes(path: Path) -> GivenBoxes:
    """Read a boxes file. Raises ExtractError naming what is wrong."""
    try:
        data = path.read_bytes()
        entries = json.loads(data)
    except (OSError, ValueError) as error:
        raise ExtractError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(entries, dict):
        raise ExtractError(f"{path}: wanted {{image id: [[x1, y1, x2, y2], ...]}}")
    for key in _EXTRAS:
        having = [image for image, e in entries.items() if isinstance(e, dict) and key in e]
        if 0 < len(having) < len(entries):
            lacking = next(image for image in entries if image not in set(having))
            raise ExtractError(
                f"{path}: entry {having[0]!r} has {key}, entry {lacking!r} has none; wanted them"
                " in all entries or in none"
            )
    return GivenBoxes(path, hashlib.sha256(data).hexdigest(), entries)
