"""Records that every foreign format can hold, and what a foreign file holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from extract.cache import ImageFeatures, Stream
from extract.cache_import import Imported, import_features
from extract.formats import registry
from extract.writer import CacheWriter

IDS = ["37209", "9", "v1.2"]
EXTRAS = {"objects": "i4", "scores": "f4", "attributes": "i4", "attribute_scores": "f4"}


def record(image_id: str, *, side: int = 7, regions: bool = True) -> ImageFeatures:
    """A square grid of width 6 and one to five regions of width 8, of 90 x 60 pixels."""
    draw = np.random.default_rng(sum(map(ord, image_id)))
    count = int(draw.integers(1, 6))
    low = draw.uniform(0, 30, size=(count, 2))
    found = ImageFeatures(image_id=image_id, width=90, height=60, streams={})
    found.streams["grids"] = draw.normal(size=(side * side, 6)).astype("f4")
    found.grid_shape["grids"] = (side, side)
    if regions:
        found.streams["regions"] = draw.normal(size=(count, 8)).astype("f4")
        found.boxes["regions"] = np.hstack([low, low + draw.uniform(1, 30, (count, 2))]).astype(
            "f4"
        )
        found.extras["regions"] = {
            key: (draw.random(count) * 9).astype(kind) for key, kind in EXTRAS.items()
        }
    return found


def cache_of(folder: Path, ids: Sequence[str] = IDS, **options: Any) -> Path:
    records = [record(image, **options) for image in ids]
    streams = {k: Stream(v.shape[1], "float32") for k, v in records[0].streams.items()}
    with CacheWriter(folder, {"preset": "toy", "settings": {}}, streams) as writer:
        writer.commit(records)
    return folder


def bring(source: Path, out: Path, **options: Any) -> Imported:
    return import_features([(source, registry.guess(source))], out, **options)


def contents(path: Path) -> dict[str, Any]:
    """All that a foreign file or folder holds, in a form that compares."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        return {str(p.relative_to(path)): contents(p) for p in files}
    if h5py.is_hdf5(path):
        with h5py.File(path) as file:
            return {key: file[key][()].tolist() for key in file}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {key: arrays[key].tolist() for key in arrays.files}
    if path.suffix == ".pth":
        return {"tensor": torch.load(path, weights_only=True).tolist()}
    return {"bytes": path.read_bytes()}
