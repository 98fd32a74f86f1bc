"""Other programs' feature files into a cache: entry by entry, the bad ones listed by name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from extract.errors import CacheError
from extract.formats.base import Entry, Format, FormatError
from extract.image_sizes import ImageSizes
from extract.records import DTYPES, ImageFeatures, Stream
from extract.writer import SHARD_IMAGES, CacheWriter

log = logging.getLogger(__name__)

SHARD_BYTES = 64 << 20  # of rows: what is held in memory at most, about
_LOOKED_AT = 16  # entries whose majority says what all must have


@dataclass
class Imported:
    """What one call did."""

    done: int = 0
    already: int = 0
    repeated: int = 0  # later entries of an image that came before
    failures: list[tuple[str, str]] = field(default_factory=list)  # where, what is wrong


def import_features(
    sources: Sequence[tuple[Path, Format]],
    out: Path,
    *,
    name: str | None = None,
    dtype: str | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    sizes: ImageSizes | None = None,
    on_done: Callable[[int], None] = lambda count: None,
) -> Imported:
    """Bring the cache in `out` up to all entries of foreign files; a repeated call goes on.

    `name` stands for the preset, by default `imported-FORMAT`; `dtype` is that of the rows, by
    default the source's own; `names` are vocabularies of the extras `objects` and `attributes`.
    Bad entries are failures of the cache. Raises CacheError when nothing can be read or written.
    """
    source, kind = sources[0]
    reader = _Reader(names or {}, sizes)
    shape = reader.shape_of(source, kind, dtype)
    settings = {"imported": kind.name} | ({"sizes": "given"} if sizes is not None else {})
    meta: dict[str, Any] = {
        "preset": name or f"imported-{kind.name}",
        "settings": settings,
        "source": [each.name for each, _ in sources],
        "versions": {"h5py": h5py.__version__, "numpy": np.__version__},
    }
    if names:
        meta["names"] = {key: list(values) for key, values in names.items()}
    entries = chain.from_iterable(each.entries(path) for path, each in sources)
    with CacheWriter(out, meta, shape.streams) as writer:
        return _import(entries, reader, shape, writer, on_done)


def _import(
    entries: Iterable[Entry],
    reader: _Reader,
    shape: _Shape,
    writer: CacheWriter,
    on_done: Callable[[int], None],
) -> Imported:
    """Write the entries that the cache lacks, a shard at a time; what is ready survives a stop."""
    found, seen = Imported(), set[str]()
    ready: list[ImageFeatures] = []

    def commit() -> None:
        records = list(ready)
        ready.clear()
        writer.commit(records)
        found.done += len(records)
        on_done(len(records))

    try:
        for entry in entries:
            if entry.image_id in writer.done and entry.image_id not in seen:
                found.already += 1
                seen.add(entry.image_id)
                on_done(1)
                continue
            if entry.image_id in seen:
                found.repeated += 1
                log.warning("%s: passed over, the image came before", entry.where)
                continue
            try:
                record = reader.read(entry)
                shape.check(record)
                writer.check(record)
            except (FormatError, CacheError) as error:
                what = str(error).removeprefix(f"image {entry.image_id!r} ({entry.name}): ")
                found.failures.append((entry.where, what))
                writer.fail(entry.image_id, entry.where, "bad-entry", what)
                on_done(1)
                continue
            seen.add(entry.image_id)
            ready.append(record)
            held = sum(rows.nbytes for r in ready for rows in r.streams.values())
            if len(ready) >= SHARD_IMAGES or held >= SHARD_BYTES:
                commit()
    finally:
        commit()
    return found


@dataclass(frozen=True)
class _Shape:
    """What every record must have: the streams, and what is known of their rows."""

    streams: dict[str, Stream]
    known: frozenset[str]

    def check(self, record: ImageFeatures) -> None:
        """Raises FormatError naming what a record lacks or has beyond the others."""
        known = _known(record)
        if known != self.known:
            lacks, beyond = sorted(self.known - known), sorted(known - self.known)
            lines = [f"lacks {', '.join(lacks)}"] if lacks else []
            lines += [f"has {', '.join(beyond)}"] if beyond else []
            raise FormatError(f"{' and '.join(lines)}, unlike the other entries")


def _known(record: ImageFeatures) -> frozenset[str]:
    """All parts of a record by name."""
    return frozenset(
        [
            *(f"{name} rows" for name in record.streams),
            *(f"{name} boxes" for name in record.boxes),
            *(f"{name} grid shape" for name in record.grid_shape),
            *(f"{name} {key}" for name, extras in record.extras.items() for key in extras),
        ]
    )


@dataclass(frozen=True)
class _Reader:
    names: Mapping[str, Sequence[str]]
    sizes: ImageSizes | None

    def read(self, entry: Entry) -> ImageFeatures:
        """The entry's record, whole. Raises FormatError."""
        record = entry.load()
        record = replace(record, image_id=entry.image_id, file=entry.name)
        if self.sizes is not None and not record.width:
            size = self.sizes.of(record.image_id)
            if size is None:
                raise FormatError(f"no size of image {record.image_id!r} in {self.sizes.path}")
            record.width, record.height = size
        for key, values in self.names.items():
            for extras in record.extras.values():
                ids = extras.get(key, np.zeros(0, dtype=np.int64))
                if len(ids) and (ids.min() < 0 or ids.max() >= len(values)):
                    raise FormatError(
                        f"{key} go from {ids.min()} to {ids.max()}, but there are"
                        f" {len(values)} names of them"
                    )
        return record

    def shape_of(self, source: Path, kind: Format, dtype: str | None) -> _Shape:
        """What most of the first entries have. Raises CacheError when none can be read."""
        votes: Counter[tuple[tuple[tuple[str, Stream], ...], frozenset[str]]] = Counter()
        first = ""
        for entry in _first_good(kind.entries(source), self):
            if isinstance(entry, str):
                first = first or entry
                continue
            streams = tuple(
                (name, Stream(rows.shape[1], dtype or _stored(rows)))
                for name, rows in sorted(entry.streams.items())
            )
            votes[streams, _known(entry)] += 1
        if not votes:
            raise CacheError(f"{source}: no entry of it is good {kind.name}; {first}")
        streams, known = votes.most_common(1)[0][0]
        return _Shape(dict(streams), known)


def _first_good(entries: Iterator[Entry], reader: _Reader) -> Iterator[ImageFeatures | str]:
    """Records of the first good entries, and what was wrong with bad ones before them."""
    good = 0
    for entry in islice(entries, 64 * _LOOKED_AT):
        try:
            yield reader.read(entry)
            good += 1
        except FormatError as error:
            yield f"{entry.where}: {error}"
        if good == _LOOKED_AT:
            return


def _stored(rows: np.ndarray) -> str:
    return str(rows.dtype) if str(rows.dtype) in DTYPES else "float32"


def read_vocabulary(path: Path) -> list[str]:
    """One name a line, the first being that of 0. Raises CacheError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CacheError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    names = [line.strip() for line in text.rstrip("\n").split("\n")]
    if not all(names):
        raise CacheError(f"{path}: line {names.index('') + 1} is empty, wanted a name a line")
    return names
