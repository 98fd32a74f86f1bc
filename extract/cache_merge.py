"""Several caches made alike, or the shards of one, as one file."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.cache import FeatureCache, differences
from extract.durable import replacing_large
from extract.errors import CacheError
from extract.records import ImageFeatures
from extract.shard_writer import write_shard


def merge(
    paths: Sequence[Path], out: Path, *, on_done: Callable[[int], None] = lambda count: None
) -> int:
    """Write one file with the images of all caches in order of their ids; returns their number.

    The same images give the same bytes in whatever order and pieces they come. Memory does not
    grow with the rows. Every image's checksums are compared on the way. Raises CacheError on
    a cache given twice, caches made otherwise than the first, an image in two of them, a damaged
    image, an `out` that is there already and a full disk; then `out` is not there.
    """
    if out.exists():
        raise CacheError(f"{out} is there already; give another --out, or remove it first")
    caches = [FeatureCache(path) for path in paths]
    _refuse_twice(caches)
    for cache in caches[1:]:
        _refuse_different(caches[0], cache)
    owners = _owners(caches)
    if not owners:
        raise CacheError(f"no image in {', '.join(map(str, paths))}; extract some first")
    meta = joined_meta([shard.tables.meta for cache in caches for shard in cache.shards])
    totals = {
        name: sum(int(s.tables.streams[name].offsets[-1]) for c in caches for s in c.shards)
        for name in caches[0].streams
    }
    _refuse_small_disk(caches, out)
    streams = dict(sorted(caches[0].streams.items()))
    try:
        with replacing_large(out) as temporary:
            write_shard(temporary, meta, streams, totals, _records(owners, on_done))
    except OSError as error:
        raise CacheError(
            f"{out}: cannot be written ({error.strerror or error}); nothing was merged: make room"
            " or give another --out"
        ) from error
    return len(owners)


def joined_meta(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One meta for all; where values differ, as versions may, the list of them in order."""
    joined: dict[str, Any] = {}
    for key in sorted({key for meta in metas for key in meta}):
        values = [meta[key] for meta in metas if key in meta]
        if all(isinstance(value, Mapping) for value in values):
            joined[key] = joined_meta(values)
        elif all(value == values[0] for value in values):
            joined[key] = values[0]
        else:
            each = [v for value in values for v in (value if isinstance(value, list) else [value])]
            texts = sorted({json.dumps(value, sort_keys=True) for value in each})
            joined[key] = [json.loads(text) for text in texts]
    return joined


def _refuse_twice(caches: Sequence[FeatureCache]) -> None:
    found: dict[Path, Path] = {}  # each file and the cache that it came with
    for cache in caches:
        for file in [shard.path.resolve() for shard in cache.shards]:
            if file in found:
                raise CacheError(
                    f"the same cache is given twice: {found[file]} and {cache.path}; give it once"
                )
            found[file] = cache.path


def _refuse_different(first: FeatureCache, other: FeatureCache) -> None:
    lines = differences(first.fingerprint(), other.fingerprint())
    lines += [
        f"stream {name}: {first.streams.get(name, 'absent')} / {other.streams.get(name, 'absent')}"
        for name in sorted({*first.streams, *other.streams})
        if first.streams.get(name) != other.streams.get(name)
    ]
    if lines:
        shown = "\n  ".join(lines)
        raise CacheError(
            f"{first.path} and {other.path} were made with different settings:\n  {shown}\nextract"
            " one of them again with the preset of the other, or merge only caches made alike"
        )


def _owners(caches: Sequence[FeatureCache]) -> dict[str, FeatureCache]:
    """Whose each image is, in order of the ids."""
    owners: dict[str, FeatureCache] = {}
    for cache in caches:
        for image in cache.ids:
            if image in owners:
                raise CacheError(
                    f"image {image!r} is in {owners[image].place(image)[0].path} and in"
                    f" {cache.place(image)[0].path}; leave one of them out"
                )
            owners[image] = cache
    return dict(sorted(owners.items()))


def _records(
    owners: Mapping[str, FeatureCache], on_done: Callable[[int], None]
) -> Iterator[ImageFeatures]:
    for image, cache in owners.items():
        shard, place = cache.place(image)
        record = shard.read(place, list(cache.streams))
        wrong = shard.changed(place, record)
        if wrong:
            raise CacheError(
                f"{shard.path}: image {image!r}: {', '.join(wrong)} changed since they were"
                f" written; type pipeline cache verify {shlex.quote(str(cache.path))} to see"
                " all such"
            )
        yield record
        on_done(1)


def _refuse_small_disk(caches: Sequence[FeatureCache], out: Path) -> None:
    needed = sum(shard.path.stat().st_size for cache in caches for shard in cache.shards)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
    except OSError as error:
        raise CacheError(f"{out.parent}: cannot be written to ({error.strerror})") from error
    if needed > free:
        raise CacheError(
            f"{out}: needs about {needed / 1e6:,.1f} MB, {out.parent} has {free / 1e6:,.1f} MB"
            " free; make room or give another --out"
        )
