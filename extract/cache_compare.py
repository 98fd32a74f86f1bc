"""How far two caches of the same images agree."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extract.cache import FeatureCache, differences
from extract.errors import CacheError
from extract.records import ImageFeatures


@dataclass(frozen=True)
class Agreement:
    """Two caches' rows of one image in one stream."""

    image_id: str
    matched: int  # pairs of rows
    unmatched: int  # rows of either side without a partner
    iou: float | None  # mean over the pairs; None without boxes
    cosine: float | None  # mean over the pairs; None when widths differ or nothing matched
    cosine_min: float | None  # of the worst pair

    @property
    def badness(self) -> tuple[bool, float, float, int]:
        """Larger is worse: nothing matched, then low cosine, low IoU, many unmatched rows."""
        cosine = 0.0 if self.cosine is None else -self.cosine
        return self.matched == 0, cosine, -(self.iou or 0.0), self.unmatched


def compare(
    a: Path, b: Path, *, worst: int = 10, on_done: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """Compare the images that both caches have, stream by stream.

    A row of `a` and a row of `b` are a pair when their boxes overlap and each has no better
    partner left: largest intersection over union first. Without boxes rows pair by their order,
    where both sides have as many. Cosine is between the features of pairs, and only where the
    widths are the same. Raises CacheError on a broken cache or when no image is in both.
    """
    first, second = FeatureCache(a), FeatureCache(b)
    shared = shared_ids(first, second)
    names = [name for name in first.streams if name in second.streams]
    found: dict[str, list[Agreement]] = {name: [] for name in names}
    sizes = []
    for image in shared:
        x, y = first.read(image, names), second.read(image, names)
        if (x.width, x.height) != (y.width, y.height):
            sizes.append(image)
        for name in names:
            found[name].append(agreement(x, y, name))
        on_done(1)
    return {
        "a": str(a),
        "b": str(b),
        "shared": len(shared),
        "only_a": [image for image in first.ids if image not in second],
        "only_b": [image for image in second.ids if image not in first],
        "settings": differences(first.fingerprint(), second.fingerprint()),
        "other_size": sizes,  # images whose width or height differ: their boxes cannot agree
        "streams_only_a": [name for name in first.streams if name not in second.streams],
        "streams_only_b": [name for name in second.streams if name not in first.streams],
        "streams": {
            name: {
                "widths": [first.streams[name].width, second.streams[name].width],
                **_summary(found[name], worst),
            }
            for name in names
        },
    }


def shared_ids(first: FeatureCache, second: FeatureCache) -> list[str]:
    """The images in both. Raises CacheError when there is none."""
    shared = [image for image in first.ids if image in second]
    for cache in (first, second):
        if not cache.ids:
            raise CacheError(
                f"{cache.path}: an empty cache, nothing to compare; bring images into it with"
                f" pipeline extract ... --out {shlex.quote(str(cache.path))}"
            )
    if not shared:
        raise CacheError(
            f"{first.path} and {second.path} have no image in common: the one begins"
            f" {', '.join(first.ids[:3])}, the other {', '.join(second.ids[:3])}"
        )
    return shared


def agreement(x: ImageFeatures, y: ImageFeatures, stream: str) -> Agreement:
    """Match and compare the rows of one image."""
    p, q = x.streams[stream], y.streams[stream]  # (N, D), (M, D')
    iou: float | None = None
    if stream in x.boxes and stream in y.boxes:
        left, right, overlaps = match(x.boxes[stream], y.boxes[stream])
        iou = float(overlaps.mean()) if len(overlaps) else 0.0
    else:
        left = right = np.arange(len(p) if len(p) == len(q) else 0)
    cosines = np.zeros(0)
    if p.shape[1] == q.shape[1]:
        cosines = cosine(p[left], q[right])  # (pairs,)
    return Agreement(
        image_id=x.image_id,
        matched=len(left),
        unmatched=len(p) + len(q) - 2 * len(left),
        iou=iou,
        cosine=float(cosines.mean()) if len(cosines) else None,
        cosine_min=float(cosines.min()) if len(cosines) else None,
    )


def match(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of boxes (N, 4) and (M, 4), best overlap first: indices into each, and their IoU.

    Takes all pairs at once whose boxes prefer each other, which is the same as one by one.
    """
    if np.array_equal(a, b):
        return np.arange(len(a)), np.arange(len(b)), np.ones(len(a))
    left, right, values = [], [], []
    overlap = box_iou(a, b)  # (N, M)
    while overlap.size:
        best = overlap.argmax(axis=1)  # (N,)
        rows = np.arange(len(a))
        mutual = (overlap.argmax(axis=0)[best] == rows) & (overlap[rows, best] > 0)  # (N,)
        if not mutual.any():
            break
        rows, best = rows[mutual], best[mutual]
        left.append(rows)
        right.append(best)
        values.append(overlap[rows, best])
        overlap[rows, :] = 0
        overlap[:, best] = 0
    if not left:
        none = np.zeros(0, dtype=np.int64)
        return none, none, np.zeros(0)
    return np.concatenate(left), np.concatenate(right), np.concatenate(values)


def box_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (N, 4) and (M, 4): (N, M) float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    low = np.maximum(a[:, None, :2], b[None, :, :2])  # (N, M, 2)
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])  # (N, M, 2)
    common = np.clip(high - low, 0, None).prod(axis=2)  # (N, M)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (a, b)]
    union = areas[0][:, None] + areas[1][None, :] - common  # (N, M)
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def cosine(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Cosine of the rows of two (N, D): (N,) float64. Two zero rows agree, one of them does not."""
    p, q = p.astype(np.float64), q.astype(np.float64)
    lengths = np.linalg.norm(p, axis=1) * np.linalg.norm(q, axis=1)  # (N,)
    both_zero = ~p.any(axis=1) & ~q.any(axis=1)  # (N,)
    found = np.divide((p * q).sum(axis=1), lengths, out=np.zeros(len(p)), where=lengths > 0)
    return np.where(both_zero, 1.0, found)


def _summary(images: list[Agreement], worst: int) -> dict[str, Any]:
    ious = [image.iou for image in images if image.iou is not None]
    cosines = [image.cosine for image in images if image.cosine is not None]
    lowest = [image.cosine_min for image in images if image.cosine_min is not None]
    ranked = sorted(images, key=lambda image: image.badness, reverse=True)
    return {
        "iou": float(np.mean(ious)) if ious else None,
        "cosine": float(np.mean(cosines)) if cosines else None,
        "cosine_min": min(lowest) if lowest else None,
        "matched": sum(image.matched for image in images),
        "unmatched": sum(image.unmatched for image in images),
        "worst": [asdict(image) for image in ranked[:worst]],
    }
