"""The extraction loop: decode ahead, run full batches, write shards behind, note failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from extract.cache import FeatureCache, ImageFeatures
from extract.errors import CacheError, ImageError
from extract.images import quiet_pillow
from extract.prepared import FeatureExtractor, Prepared
from extract.share import Share
from extract.sources import Source
from extract.writer import ALL, SHARD_IMAGES, CacheWriter

_WAITING = 2  # batches that may wait for images of their shape


@dataclass(frozen=True)
class Failure:
    """An image that could not be done."""

    source: Source
    reason: str
    detail: str


@dataclass(frozen=True)
class Plan:
    """What a call would do."""

    images: int  # in all
    already: int  # of these in the cache
    failures: list[Failure]  # those that cannot be used
    bytes: int  # about what the others will take


@dataclass
class Summary:
    """What one call did."""

    done: int = 0
    already: int = 0
    failures: list[Failure] = field(default_factory=list)


def extract(
    sources: Sequence[Source],
    extractor: FeatureExtractor,
    out: Path,
    *,
    workers: int = 2,
    shard_images: int = SHARD_IMAGES,
    share: Share = ALL,
    on_done: Callable[[int], None] = lambda count: None,
) -> Summary:
    """Bring the cache in `out` up to all sources; images that it holds are left alone.

    Of several processes, each with its `share`, each does its own images of the same sources.
    `on_done` hears of images once they are durable, or have failed. Images that failed in an
    earlier call are tried again. After Ctrl-C what is ready is kept before KeyboardInterrupt
    goes on. Raises CacheError when `out` cannot be written or was made otherwise.
    """
    summary = Summary()
    sources = [source for source in sources if share.has(source.image_id)]
    if not {source.image_id for source in sources} <= _finished(out):
        extractor.load()  # before anything is written
    with (
        CacheWriter(out, extractor.meta, extractor.streams, share) as writer,
        ThreadPoolExecutor(max_workers=1) as behind,
        quiet_pillow(),
    ):
        waiting = [source for source in sources if source.image_id not in writer.done]
        summary.already = len(sources) - len(waiting)
        records: list[ImageFeatures] = []
        shards = _Shards(writer, behind, summary, on_done)
        try:
            for source, found in _features(waiting, extractor, workers):
                found = _checked(writer, source, found)
                if isinstance(found, Failure):
                    summary.failures.append(found)
                    writer.fail(source.image_id, source.file, found.reason, found.detail)
                    on_done(1)
                    continue
                records.append(found)
                if len(records) >= shard_images:
                    shards.write(records)
                shards.count()
        except KeyboardInterrupt:
            shards.finish(records)
            raise
        shards.finish(records)
    return summary


class _Shards:
    """Shards written in a thread, one at a time; images count once they are durable."""

    def __init__(
        self,
        writer: CacheWriter,
        thread: ThreadPoolExecutor,
        summary: Summary,
        on_done: Callable[[int], None],
    ) -> None:
        self.writer, self.thread = writer, thread
        self.summary, self.on_done = summary, on_done
        self.written: Future[None] | None = None
        self.images = 0  # of the shard that is being written

    def write(self, records: list[ImageFeatures]) -> None:
        """Take `records` over when the shard before is durable; raises what that one raised."""
        self.count(wait=True)
        ready, self.images = list(records), len(records)
        records.clear()
        self.written = self.thread.submit(self.writer.commit, ready)

    def count(self, wait: bool = False) -> None:
        """Report the shard when it is durable; raises CacheError when it could not be written."""
        if self.written is not None and (wait or self.written.done()):
            self.written.result()
            self.written = None
            self.summary.done += self.images
            self.on_done(self.images)

    def finish(self, records: list[ImageFeatures]) -> None:
        """Write the last shard and wait until all is durable."""
        self.write(records)
        self.count(wait=True)


def _finished(out: Path) -> frozenset[str]:
    """Ids that the cache holds, none where it must be mended first."""
    try:
        return frozenset(FeatureCache(out).ids) if (out / "cache.json").exists() else frozenset()
    except CacheError:
        return frozenset()


def _checked(
    writer: CacheWriter, source: Source, found: ImageFeatures | Failure
) -> ImageFeatures | Failure:
    """The features, or a failure when the cache would refuse them."""
    if isinstance(found, ImageFeatures):
        try:
            writer.check(found)
        except CacheError as error:
            return Failure(source, "bad-features", str(error))
    return found


def plan(
    sources: Sequence[Source],
    extractor: FeatureExtractor,
    out: Path,
    *,
    workers: int = 2,
    on_done: Callable[[int], None] = lambda count: None,
) -> Plan:
    """What `extract` would do; nothing is written. Raises CacheError when `out` is broken.

    Every image to come is decoded, so that those that cannot be used do not count.
    """
    done = frozenset(FeatureCache(out).ids) if (out / "cache.json").exists() else frozenset()
    waiting = [source for source in sources if source.image_id not in done]
    failures, total = list[Failure](), 0
    with quiet_pillow():
        for prepared in _decoded(waiting, extractor, workers):
            on_done(1)
            if isinstance(prepared, Failure):
                failures.append(prepared)
                continue
            for name, stream in extractor.streams.items():
                boxes = prepared.boxes if name == "regions" else None
                rows = extractor.cells(name) if boxes is None else len(boxes)
                total += rows * (stream.width * np.dtype(stream.dtype).itemsize + 16)  # 16: box
    return Plan(len(sources), len(sources) - len(waiting), failures, total)


def extract_in_memory(
    sources: Sequence[Source], extractor: FeatureExtractor, workers: int = 2
) -> tuple[list[ImageFeatures], list[Failure]]:
    """Features of a few images without a cache."""
    records, failures = [], []
    with quiet_pillow():
        for _, found in _features(sources, extractor, workers):
            if isinstance(found, Failure):
                failures.append(found)
            else:
                records.append(found)
    return records, failures


def _features(
    sources: Sequence[Source], extractor: FeatureExtractor, workers: int
) -> Iterator[tuple[Source, ImageFeatures | Failure]]:
    """What became of each image; failures come when they are met, features by the batch.

    A batch holds images of one shape. Of shapes that are rare some wait, but never more than two
    batches in all.
    """
    size = extractor.preset.batch
    waiting: dict[tuple[int, ...], list[Prepared]] = {}  # by shape
    for prepared in _decoded(sources, extractor, workers):
        if isinstance(prepared, Failure):
            yield prepared.source, prepared
            continue
        shape = tuple(prepared.pixels.shape)
        waiting.setdefault(shape, []).append(prepared)
        if len(waiting[shape]) == size:
            yield from _pairs(waiting.pop(shape), extractor)
        elif sum(len(batch) for batch in waiting.values()) > _WAITING * size:
            yield from _pairs(waiting.pop(next(iter(waiting))), extractor)
    for batch in waiting.values():
        yield from _pairs(batch, extractor)


def _pairs(
    batch: list[Prepared], extractor: FeatureExtractor
) -> list[tuple[Source, ImageFeatures]]:
    sources = [prepared.source for prepared in batch]
    return list(zip(sources, extractor.extract(batch), strict=True))


def _decoded(
    sources: Sequence[Source], extractor: FeatureExtractor, workers: int
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
