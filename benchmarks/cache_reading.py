"""Reading random batches of region features: our cache against the common HDF5 layout.

    python benchmarks/cache_reading.py [--images 1200] [--batches 40] [--repeats 5]

The common layout, as widely used feature files have it: one dataset for each image and field
(`ID_features`, `ID_boxes`), float32, chunks chosen by nobody, and the file opened again for each
item. Both sides hold the same images, 10 to 100 regions of width 2048, and read the same random
batches of 50 images, features and boxes of all, into float32 tensors. Everything is in the page
cache: each side reads all of its file once before it is timed. Sides take turns; the best turn of
each counts.

Prints one line of JSON: wall and CPU seconds of a turn, images a second, bytes, and `ratio`, the
common layout's wall seconds over ours, folder of shards and merged file. `opened_once` is the
common layout with its file kept open.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from extract.cache import FeatureCache, ImageFeatures, Stream
from extract.cache_merge import merge
from extract.writer import CacheWriter

WIDTH = 2048
BATCH = 50
SHARD = 256
Batches = Sequence[Sequence[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--batches", type=int, default=40, help="of 50 images in a turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side")
    parser.add_argument("--folder", type=Path, help="where the temporary files go")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="cache-reading-", dir=options.folder) as name:
        facts = measure(Path(name), options.images, options.batches, options.repeats)
    print(json.dumps(facts))


def measure(folder: Path, images: int, batches: int, repeats: int) -> dict[str, Any]:
    """Write both layouts, read them in turn."""
    common, shards, merged = folder / "common.h5", folder / "features", folder / "features.h5"
    ids = write(common, shards, images)
    merge([shards], merged)
    draw = np.random.default_rng(1)
    plan = [draw.choice(ids, size=BATCH, replace=False).tolist() for _ in range(batches)]
    sides: dict[str, Callable[[Batches], int]] = {
        "common": lambda plan: read_common(common, plan),
        "opened_once": lambda plan: read_opened(common, plan),
        "shards": lambda plan: read_ours(shards, plan),
        "merged": lambda plan: read_ours(merged, plan),
    }
    warm = {name: read([ids]) for name, read in sides.items()}
    if len(set(warm.values())) != 1:
        raise SystemExit(f"the sides read different numbers of regions: {warm}")
    best: dict[str, tuple[float, float]] = {}
    for _ in range(repeats):
        for name, read in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            read(plan)
            taken = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = min(taken, best.get(name, taken))
    count = batches * BATCH
    return {
        "images": images,
        "read": count,
        **{
            name: {"wall_s": round(w, 4), "cpu_s": round(c, 4), "images_per_s": round(count / w)}
            for name, (w, c) in best.items()
        },
        "ratio": {k: round(best["common"][0] / best[k][0], 2) for k in ("shards", "merged")},
        "cpu_ratio": {k: round(best["common"][1] / best[k][1], 2) for k in ("shards", "merged")},
        "bytes": {"common": common.stat().st_size, "merged": merged.stat().st_size},
    }


def write(common: Path, shards: Path, images: int) -> list[str]:
    """The same made-up images in both layouts; returns their ids."""
    draw = np.random.default_rng(0)
    ids = [str(number) for number in range(1, images + 1)]
    meta = {"preset": "benchmark", "settings": {"width": WIDTH}}
    with (
        h5py.File(common, "w") as file,
        CacheWriter(shards, meta, {"regions": Stream(WIDTH)}) as writer,
    ):
        for start in range(0, images, SHARD):
            records = [image(draw, image_id) for image_id in ids[start : start + SHARD]]
            for record in records:
                file[f"{record.image_id}_features"] = record.streams["regions"]
                file[f"{record.image_id}_boxes"] = record.boxes["regions"]
            writer.commit(records)
    return ids


def image(draw: np.random.Generator, image_id: str) -> ImageFeatures:
    """10 to 100 regions of an image of 640 x 480 pixels."""
    count = int(draw.integers(10, 101))
    corners = np.sort(draw.random((count, 2, 2), dtype=np.float32), axis=1)  # (N, 2, 2)
    boxes = corners.reshape(count, 4) * np.array([640, 480, 640, 480], np.float32)  # (N, 4)
    rows = draw.standard_normal((count, WIDTH), dtype=np.float32)  # (N, D)
    return ImageFeatures(
        image_id=image_id,
        width=640,
        height=480,
        streams={"regions": rows},
        boxes={"regions": boxes},
    )


def read_common(path: Path, plan: Batches) -> int:
    """The common way: open the file for every item. Returns the regions read."""
    count = 0
    for batch in plan:
        for image_id in batch:
            with h5py.File(path, "r") as file:
                rows, _ = file[f"{image_id}_features"][()], file[f"{image_id}_boxes"][()]
            count += len(torch.from_numpy(rows))
    return count


def read_opened(path: Path, plan: Batches) -> int:
    """The common layout with its file opened once."""
    count = 0
    with h5py.File(path, "r") as file:
        for batch in plan:
            for image_id in batch:
                rows, _ = file[f"{image_id}_features"][()], file[f"{image_id}_boxes"][()]
                count += len(torch.from_numpy(rows))
    return count


def read_ours(path: Path, plan: Batches) -> int:
    """Our cache, opened anew for the turn as a worker process would."""
    cache, count = FeatureCache(path), 0
    for batch in plan:
        for found in map(cache.read, batch):
            count += len(torch.from_numpy(found.streams["regions"]).float())  # (N, D)
    return count


if __name__ == "__main__":
    main()
