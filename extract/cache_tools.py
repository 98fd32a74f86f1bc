"""Caches looked at, checked, merged and compared."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torchvision.ops import box_iou

from extract.cache import (
    SCHEMA,
    FeatureCache,
    Shard,
    checksum,
    differences,
    journal_lines,
    read_description,
)
from extract.errors import CacheError


def inspect(path: Path) -> dict[str, Any]:
    """What a cache holds: counts, streams, rows per image, bytes, and all of its meta."""
    cache = FeatureCache(path)
    streams = {}
    for name, stream in cache.streams.items():
        counts = np.concatenate([np.diff(s.array(f"{name}/offsets")) for s in cache.shards])
        streams[name] = {
            "width": stream.width,
            "dtype": stream.dtype,
            "rows": int(counts.sum()),
            "rows_min": int(counts.min()),
            "rows_mean": float(counts.mean()),
            "rows_max": int(counts.max()),
        }
    failures = path / "failures.jsonl"
    return {
        "path": str(path),
        "images": len(cache),
        "files": len(cache.shards),
        "bytes": sum(shard.path.stat().st_size for shard in cache.shards),
        "failures": len(failures.read_text(encoding="utf-8").splitlines())
        if failures.is_file()
        else 0,
        "streams": streams,
        "meta": cache.meta,
    }


def verify(path: Path, wanted: Sequence[str] | None = None) -> list[str]:
    """What is wrong with a cache, one line per finding; empty when it is sound.

    `wanted` are ids that must be there.
    """
    problems: list[str] = []
    seen: dict[str, str] = {}
    for shard, digest in _shards(path):
        if digest is not None and not shard.path.is_file():
            problems.append(f"{shard.path}: in the journal but not on disk")
            continue
        if digest is not None and _digest(shard.path) != digest:
            problems.append(f"{shard.path}: its bytes are not those that were written")
        try:
            problems += _verify_shard(shard, seen)
        except (CacheError, OSError, KeyError, ValueError, RuntimeError) as error:
            problems.append(f"{shard.path}: cannot be read ({error})")
    for image in wanted or ():
        if image not in seen:
            problems.append(f"image {image!r} is missing")
    return problems


def _shards(path: Path) -> Iterator[tuple[Shard, str | None]]:
    if path.is_dir():
        read_description(path)
        for line in journal_lines(path):
            yield Shard(path / line["shard"]), line["sha256"]
    elif path.is_file():
        yield Shard(path), None
    else:
        raise CacheError(f"{path}: no such feature cache")


def _verify_shard(shard: Shard, seen: dict[str, str]) -> list[str]:
    problems = []
    ids = shard.ids
    for place, image in enumerate(ids):
        if image in seen:
            problems.append(f"image {image!r} is in {seen[image]} and again in {shard.path}")
        seen[image] = str(shard.path)
        for stream in shard.stream_names:
            where = f"{shard.path}: image {image!r}, stream {stream!r}"
            span = shard.span(stream, place)
            rows = shard.array(f"{stream}/rows")[span]
            boxes = shard.array(f"{stream}/boxes")[span]
            if not 0 <= span.start < span.stop <= len(shard.array(f"{stream}/rows")):
                problems.append(f"{where}: offsets {span.start}..{span.stop} are impossible")
                continue
            if checksum(rows, boxes) != int(shard.array(f"{stream}/checksum")[place]):
                problems.append(f"{where}: rows or boxes have changed since they were written")
            if not np.isfinite(rows).all():
                problems.append(f"{where}: holds values that are not finite")
            width, height = shard.array("size")[place]
            outside = (boxes < -1).any() or (boxes > [width + 1, height + 1] * 2).any()
            if outside:
                problems.append(f"{where}: a box lies outside the image of {width} x {height}")
    return problems


def merge(paths: Sequence[Path], out: Path) -> int:
    """One contiguous file of several caches, images by id; returns how many images.

    The same images give the same file in whatever order they come. Raises CacheError on caches
    made with different settings and on an image in two caches.
    """
    caches = [FeatureCache(path) for path in paths]
    owners: dict[str, FeatureCache] = {}
    for cache in caches:
        lines = differences(caches[0].fingerprint(), cache.fingerprint())
        if lines or cache.streams != caches[0].streams:
            shown = "\n  ".join(lines or [f"streams {caches[0].streams} / {cache.streams}"])
            raise CacheError(f"{caches[0].path} and {cache.path} differ:\n  {shown}")
        for image in cache.ids:
            if image in owners:
                raise CacheError(
                    f"image {image!r} is in {owners[image].path} and in {cache.path}; take one out"
                )
            owners[image] = cache
    ids = sorted(owners)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with h5py.File(temporary, "w", libver="latest") as file:
            _write_merged(file, ids, owners, caches[0])
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CacheError(f"{out}: cannot be written ({error.strerror or error})") from error
    return len(ids)


def _write_merged(
    file: h5py.File, ids: Sequence[str], owners: dict[str, FeatureCache], first: FeatureCache
) -> None:
    text = h5py.string_dtype()
    file.attrs["schema"] = SCHEMA
    file.attrs["meta"] = json.dumps(first.meta, ensure_ascii=False)
    places = [owners[image].place(image) for image in ids]
    file.create_dataset("image_id", data=list(ids), dtype=text)
    names = [shard.file["file"][place].decode("utf-8") for shard, place in places]
    file.create_dataset("file", data=names, dtype=text)
    file.create_dataset("size", data=np.stack([s.array("size")[p] for s, p in places]))
    for stream, kind in first.streams.items():
        spans = [shard.span(stream, place) for shard, place in places]
        counts = [span.stop - span.start for span in spans]
        offsets = np.cumsum([0, *counts], dtype=np.int64)  # (n + 1,)
        group = file.create_group(stream)
        group.create_dataset("offsets", data=offsets)
        single = {name for shard, _ in places for name in shard.file[stream]} & {
            "checksum",
            "grid_shape",
        }
        for name in sorted(single):
            values = [shard.array(f"{stream}/{name}")[place] for shard, place in places]
            group.create_dataset(name, data=np.stack(values))
        ragged = [n for n in places[0][0].file[stream] if n not in {*single, "offsets"}]
        for name in ragged:
            sample = places[0][0].file[stream][name]
            dtype = kind.dtype if name == "rows" else sample.dtype
            made = group.create_dataset(
                name, shape=(int(offsets[-1]), *sample.shape[1:]), dtype=dtype
            )
            for (shard, _), span, start in zip(places, spans, offsets[:-1], strict=True):
                made[start : start + span.stop - span.start] = shard.array(f"{stream}/{name}")[span]


def compare(a: Path, b: Path) -> dict[str, Any]:
    """How far two caches agree: per stream, mean IoU and cosine of the rows matched by box.

    Each row of `a` is matched with the row of `b` of largest IoU. Cosine is None where the
    widths differ.
    """
    first, second = FeatureCache(a), FeatureCache(b)
    shared = [image for image in first.ids if image in second]
    streams: dict[str, Any] = {}
    for name in first.streams:
        if name not in second.streams:
            continue
        same_width = first.streams[name].width == second.streams[name].width
        images = {image: _agreement(first, second, image, name, same_width) for image in shared}
        ious = [iou for iou, _ in images.values()]
        cosines = [cosine for _, cosine in images.values() if cosine is not None]
        worst = sorted(images, key=lambda image: (images[image][1] or 0.0, images[image][0]))[:10]
        streams[name] = {
            "iou": float(np.mean(ious)) if ious else None,
            "cosine": float(np.mean(cosines)) if cosines else None,
            "worst": {image: images[image] for image in worst},
        }
    return {
        "shared": len(shared),
        "only_first": [image for image in first.ids if image not in second],
        "only_second": [image for image in second.ids if image not in first],
        "settings": differences(first.fingerprint(), second.fingerprint()),
        "streams": streams,
    }


def _agreement(
    first: FeatureCache, second: FeatureCache, image: str, stream: str, same_width: bool
) -> tuple[float, float | None]:
    x, y = first.read(image, [stream]), second.read(image, [stream])
    overlap = box_iou(
        torch.from_numpy(x.boxes[stream].copy()), torch.from_numpy(y.boxes[stream].copy())
    )  # (N, N')
    iou, match = overlap.max(dim=1)  # (N,)
    if not same_width:
        return float(iou.mean()), None
    p = x.streams[stream].astype(np.float64)  # (N, D)
    q = y.streams[stream].astype(np.float64)[match.numpy()]  # (N, D)
    norms = np.linalg.norm(p, axis=1) * np.linalg.norm(q, axis=1)  # (N,)
    cosine = (p * q).sum(axis=1) / np.maximum(norms, 1e-12)  # (N,)
    return float(iou.mean()), float(cosine.mean())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
