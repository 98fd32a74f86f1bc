"""Training examples in a reproducible order, and feature batches from a cache.

The order of an epoch depends on the seed, the stage and the epoch alone, so a resumed run sees
exactly what an uninterrupted one would have seen.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from caption.errors import CaptionError
from caption.features import Features, collate
from caption.vocabulary import PAD, Caption, Vocabulary
from extract.cache import FeatureCache


@dataclass(frozen=True, kw_only=True)
class Example:
    """One image with its tokenised captions."""

    image_id: str
    captions: tuple[Caption, ...]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Features of B images and, for cross-entropy, R caption rows grouped by image."""

    ids: tuple[str, ...]
    features: Features
    tokens: Tensor | None = None  # (R, T + 1) bos words eos pad


def generator(seed: int, *names: object) -> torch.Generator:
    """A CPU generator that depends on the seed and the names only."""
    mixed = zlib.crc32(repr((seed, *names)).encode())
    return torch.Generator().manual_seed((seed << 32) + mixed)


class FeatureSource:
    """Feature batches of a cache's images.

    `shuffled` gives every image the features of another one (new pairs for each `key` of
    `batch`): what is learned or decoded then has seen no image, only language. `names` has the
    ids in the cache of images that go by another id there. `views` are caches of the same images
    seen otherwise, and `hidden_rows` is a share of rows: both are for `drawn` only.
    """

    def __init__(
        self,
        cache: FeatureCache,
        streams: Sequence[str],
        *,
        shuffled: bool = False,
        seed: int = 0,
        names: Mapping[str, str] | None = None,
        views: Sequence[FeatureCache] = (),
        hidden_rows: float = 0.0,
    ) -> None:
        self.cache, self.views, self.hidden_rows = cache, tuple(views), hidden_rows
        self.names = names or {}
        self.streams = tuple(streams)
        self.shuffled = shuffled
        self.seed = seed

    def assigned(self, ids: Sequence[str], key: str) -> dict[str, str]:
        """Whose features each image gets: its own, or with `shuffled` another's."""
        if not self.shuffled:
            return {image: image for image in ids}
        if len(ids) < 2:
            raise CaptionError("features of one image alone cannot be shuffled; give two or more")
        order = torch.randperm(len(ids), generator=generator(self.seed, "shuffle", key)).tolist()
        return {ids[a]: ids[b] for a, b in zip(order, order[1:] + order[:1], strict=True)}

    def features(self, ids: Sequence[str]) -> Features:
        """The features of these very images."""
        there = [self.names.get(image, image) for image in ids]
        return collate([self.cache.read(image, self.streams) for image in there], self.streams)

    def drawn(self, ids: Sequence[str], draw: torch.Generator) -> Features:
        """What to learn these images from: each from a view by lot, some of its rows hidden."""
        if not self.views and not self.hidden_rows:
            return self.features(ids)
        caches = (self.cache, *self.views)
        picks = torch.randint(len(caches), (len(ids),), generator=draw).tolist()
        there = [self.names.get(image, image) for image in ids]
        records = [caches[k].read(i, self.streams) for i, k in zip(there, picks, strict=True)]
        features = collate(records, self.streams)
        for mask in features.mask.values():  # (B, N)
            shown = mask & (torch.rand(mask.shape, generator=draw) >= self.hidden_rows)
            mask.copy_(torch.where(shown.any(dim=1, keepdim=True), shown, mask))
        return features


def check_features(
    ids: Sequence[str], cache: FeatureCache, what: str, captions: str | None
) -> None:
    """Raise CaptionError when images have no features, with the way to get them.

    `captions` is the caption file that names the images; None for photographs.
    """
    missing = [image for image in ids if image not in cache]
    if missing:
        shown = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
        preset = cache.meta.get("preset", "PRESET")
        path, whose, see = shlex.quote(str(cache.path)), "", ""
        if captions is not None:
            whose = f" of {captions}"
            see = f"\nor see which: pipeline cache verify {path} --ids {shlex.quote(captions)}"
        raise CaptionError(
            f"{len(missing)} of {len(ids)} {what}{whose} have no features in {cache.path}: {shown}"
            f"\nmake them: pipeline extract PHOTOS --preset {preset} --out {path}{see}"
        )


class Batches:
    """The training batches of one stage."""

    def __init__(
        self,
        examples: Sequence[Example],
        source: FeatureSource,
        vocabulary: Vocabulary | None,
        *,
        images: int,
        captions: int,
        max_words: int,
        seed: int,
        stage: str,
    ) -> None:
        """Without a vocabulary batches carry no tokens (self-critical training)."""
        self.examples = examples
        self.source = source
        self.vocabulary = vocabulary
        self.images, self.captions = images, captions
        self.max_words = max_words
        self.seed, self.stage = seed, stage
        pairs = vocabulary is not None and captions == 1
        count = sum(len(e.captions) for e in examples) if pairs else len(examples)
        self.pairs = pairs
        self.steps = count // images or 1  # batches in an epoch; a smaller last one is left out

    def plan(self, epoch: int) -> list[list[tuple[int, tuple[int, ...]]]]:
        """The epoch's batches as (example, captions of it) entries."""
        draw = generator(self.seed, self.stage, epoch)
        entries: list[tuple[int, tuple[int, ...]]] = []
        if self.pairs:
            entries = [
                (i, (c,)) for i, e in enumerate(self.examples) for c in range(len(e.captions))
            ]
        else:
            for index, example in enumerate(self.examples):
                order = torch.randperm(len(example.captions), generator=draw).tolist()
                # an image with fewer captions than asked for repeats them
                picked = [order[k % len(order)] for k in range(self.captions)]
                entries.append((index, tuple(picked)))
        shuffled = [entries[i] for i in torch.randperm(len(entries), generator=draw).tolist()]
        return [
            shuffled[step * self.images : (step + 1) * self.images] for step in range(self.steps)
        ]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches `start` onwards; the next one is read while the current one is used."""
        plan = self.plan(epoch)[start:]
        owners = self.source.assigned([e.image_id for e in self.examples], f"{self.stage} {epoch}")
        with ThreadPoolExecutor(max_workers=1) as pool:
            waiting = pool.submit(self._batch, plan[0], owners, epoch) if plan else None
            for following in [*plan[1:], None]:
                if waiting is None:
                    return
                batch = waiting.result()
                waiting = pool.submit(self._batch, following, owners, epoch) if following else None
                yield batch

    def _batch(
        self, entries: list[tuple[int, tuple[int, ...]]], owners: dict[str, str], epoch: int
    ) -> Batch:
        ids = tuple(self.examples[index].image_id for index, _ in entries)
        draw = generator(self.seed, "view", self.stage, epoch, ids)
        features = self.source.drawn([owners[image] for image in ids], draw)
        if self.vocabulary is None:
            return Batch(ids=ids, features=features)
        rows = [
            self.vocabulary.encode(self.examples[index].captions[place], self.max_words)
            for index, places in entries
            for place in places
        ]
        return Batch(ids=ids, features=features, tokens=padded(rows))


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Token lists as one (R, T) tensor, `PAD` behind the shorter ones."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
