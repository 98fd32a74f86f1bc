"""A cache as another program's feature files: whole, or none of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from extract.cache import FeatureCache
from extract.durable import replacing_large, sync_folder, write_text
from extract.errors import CacheError
from extract.formats.base import Format

_MARK = ".export.json"  # in a folder that is not whole yet


def export_features(
    path: Path,
    kind: Format,
    target: Path,
    *,
    on_done: Callable[[int], None] = lambda count: None,
) -> int:
    """Write the cache at `path` in a foreign format; returns the number of images.

    A file appears whole under its name. A folder holds a mark until it is whole; the same call
    goes on with such a folder. Raises CacheError on a target that is there already, on what the
    format needs and the cache has not, and on a full disk.
    """
    cache = FeatureCache(path)
    if not len(cache):
        raise CacheError(f"{path}: holds no image")
    _refuse_poor(cache, kind)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind.single_file:
            _write_file(cache, kind, target, on_done)
        else:
            _write_folder(cache, kind, target, on_done)
    except OSError as error:
        raise CacheError(
            f"{target}: cannot be written ({error.strerror or error}); make room or get leave to"
            " write there, then repeat the command"
        ) from error
    return len(cache)


def _refuse_poor(cache: FeatureCache, kind: Format) -> None:
    missing = [f"stream {name!r}" for name in kind.needs if name not in cache.streams]
    if not missing and kind.known:
        known = cache.read(cache.ids[0], ["regions"]).extras.get("regions", {})
        missing = [f"regions/{name}" for name in kind.known if name not in known]
    if missing:
        raise CacheError(
            f"{cache.path}: lacks {', '.join(missing)}, which {kind.name} needs; it has"
            f" {', '.join(cache.streams)}: choose another --format or extract with another preset"
        )


def _write_file(
    cache: FeatureCache, kind: Format, target: Path, on_done: Callable[[int], None]
) -> None:
    if target.exists():
        raise CacheError(f"{target} is there already; give another --out, or remove it first")
    with replacing_large(target) as temporary:
        kind.write(temporary, cache, on_done)


def _write_folder(
    cache: FeatureCache, kind: Format, target: Path, on_done: Callable[[int], None]
) -> None:
    mark = target / _MARK
    origin = json.dumps({"cache": str(cache.path.resolve()), "format": kind.name})
    if target.exists() and any(target.iterdir()):
        if not mark.is_file() or mark.read_text(encoding="utf-8") != origin:
            raise CacheError(
                f"{target} is there already and holds something else; give another --out, or"
                " remove it first"
            )
    else:
        target.mkdir(exist_ok=True)
        write_text(mark, origin)
    kind.write(target, cache, on_done)
    mark.unlink()
    sync_folder(target)
