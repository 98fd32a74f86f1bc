"""What a cache holds and how it was made, as one mapping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from extract.cache import FeatureCache
from extract.cache_merge import joined_meta


def inspect(path: Path) -> dict[str, Any]:
    """Counts, streams, rows of an image, bytes, failures and all of the meta.

    Raises CacheError when the cache or one of its files is broken.
    """
    cache = FeatureCache(path)
    tables = [shard.tables for shard in cache.shards]
    streams = {}
    for name, stream in cache.streams.items():
        found = [table.streams[name] for table in tables]
        columns = dict.fromkeys(key for table in found for key in table.columns if key != "rows")
        shapes = [table.grid_shape for table in found if table.grid_shape is not None]
        streams[name] = {
            "width": stream.width,
            "dtype": stream.dtype,
            **_spread(np.concatenate([np.zeros(0, np.int64), *[t.counts for t in found]])),
            "with": list(columns),  # boxes and what else is known of each row
            "grid_shapes": _common_shapes(shapes),
        }
    failures = cache.failures()
    return {
        "path": str(path),
        "form": "folder of shards" if path.is_dir() else "one file",
        "images": len(cache),
        "files": len(cache.shards),
        "bytes": sum(shard.path.stat().st_size for shard in cache.shards),
        "streams": streams,
        "failures": len(failures),
        "failure_reasons": dict(Counter(f.get("reason", "") for f in failures.values())),
        "meta": joined_meta([cache.meta, *[table.meta for table in tables]]),
        "fingerprint": cache.fingerprint(),
    }


def _spread(counts: np.ndarray) -> Mapping[str, Any]:
    """Rows in all and of an image; no image, no numbers."""
    if not len(counts):
        return {"rows": 0, "rows_min": None, "rows_mean": None, "rows_max": None}
    return {
        "rows": int(counts.sum()),
        "rows_min": int(counts.min()),
        "rows_mean": float(counts.mean()),
        "rows_max": int(counts.max()),
    }


def _common_shapes(shapes: Sequence[np.ndarray]) -> dict[str, int]:
    """The five most frequent grid shapes: `HxW` -> images."""
    counts: Counter[str] = Counter()
    for part in shapes:
        counts.update(f"{high}x{wide}" for high, wide in part.tolist())
    return dict(counts.most_common(5))
