"""The extraction loop: decode ahead, run full batches, commit shards, note failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from extract.cache import ImageFeatures
from extract.errors import ImageError
from extract.extractor import Extractor, Prepared
from extract.sources import Source
from extract.writer import CacheWriter

SHARD_IMAGES = 256  # images of a shard: what a kill can lose at most


@dataclass(frozen=True)
class Failure:
    """An image that could not be done."""

    source: Source
    reason: str
    detail: str


@dataclass
class Summary:
    """What one call did."""

    done: int = 0
    already: int = 0
    failures: list[Failure] = field(default_factory=list)


def extract(
    sources: Sequence[Source],
    extractor: Extractor,
    out: Path,
    *,
    workers: int = 2,
    shard_images: int = SHARD_IMAGES,
    on_done: Callable[[int], None] = lambda count: None,
) -> Summary:
    """Bring the cache in `out` up to all sources; images that it holds are left alone.

    `on_done` hears of images once they are durable, or have failed. Images that failed in an
    earlier call are tried again.
    """
    summary = Summary()
    with CacheWriter(out, extractor.meta, extractor.streams) as writer:
        waiting = [source for source in sources if source.image_id not in writer.done]
        summary.already = len(sources) - len(waiting)
        records: list[ImageFeatures] = []
        for found in _features(waiting, extractor, workers):
            if isinstance(found, Failure):
                summary.failures.append(found)
                source = found.source
                writer.fail(source.image_id, str(source.path), found.reason, found.detail)
                on_done(1)
                continue
            records.append(found)
            if len(records) == shard_images:
                writer.commit(records)
                on_done(len(records))
                records = []
        writer.commit(records)
        on_done(len(records))
        summary.done = len(waiting) - len(summary.failures)
    return summary


def extract_in_memory(
    sources: Sequence[Source], extractor: Extractor, workers: int = 2
) -> tuple[list[ImageFeatures], list[Failure]]:
    """Features of a few images without a cache."""
    records, failures = [], []
    for found in _features(sources, extractor, workers):
        if isinstance(found, Failure):
            failures.append(found)
        else:
            records.append(found)
    return records, failures


def _features(
    sources: Sequence[Source], extractor: Extractor, workers: int
) -> Iterator[ImageFeatures | Failure]:
    batch: list[Prepared] = []
    for prepared in _decoded(sources, extractor, workers):
        if isinstance(prepared, Failure):
            yield prepared
            continue
        batch.append(prepared)
        if len(batch) == extractor.preset.batch:
            yield from extractor.extract(batch)
            batch = []
    if batch:
        yield from extractor.extract(batch)


def _decoded(
    sources: Sequence[Source], extractor: Extractor, workers: int
) -> Iterator[Prepared | Failure]:
    """Images in order, decoded in threads, at most two batches ahead."""

    def prepare(source: Source) -> Prepared | Failure:
        try:
            return extractor.prepare(source)
        except ImageError as error:
            return Failure(source, error.reason, error.detail)

    ahead = 2 * extractor.preset.batch
    with ThreadPoolExecutor(max_workers=max(workers, 1)) as pool:
        window: deque[Future[Prepared | Failure]] = deque()
        try:
            for source in sources:
                window.append(pool.submit(prepare, source))
                if len(window) > ahead:
                    yield window.popleft().result()
            while window:
                yield window.popleft().result()
        finally:
            for future in window:
                future.cancel()
