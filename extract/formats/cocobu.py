"""ImageCaptioning.pytorch: folders `X_att` (`.npz`), `X_fc` and `X_box` (`.npy`), a file an image.

`X_att/ID.npz` holds `feat` (in some releases `z`): regions (N, D), or a grid (height, width, D).
`X_fc/ID.npy` is one vector (E,), the stream `global`; a cache without it gives the mean of its
rows, as the converter of that program does. `X_box/ID.npy` are boxes (N, 4) in pixels. xmodaler and
JDAI keep the same `.npz` alone. Image sizes are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from extract.cache import FeatureCache
from extract.errors import CacheError
from extract.formats.base import (
    Entry,
    FormatError,
    box_rows,
    record_of,
    rows,
    safe_name,
    sorted_files,
)
from extract.formats.npz import keys_of_some, part, read_npz, write_whole
from extract.records import ImageFeatures

_NAMES = ("feat", "z")


class Cocobu:
    name = "cocobu"
    summary = "folders X_att/{id}.npz, X_fc/{id}.npy, X_box/{id}.npy (ImageCaptioning.pytorch)"
    needs: tuple[str, ...] = ()  # regions or grids
    known: tuple[str, ...] = ()
    single_file = False

    def recognises(self, source: Path) -> bool:
        if not source.is_dir():
            return False
        try:
            folder = _att_folder(source)
        except CacheError:
            return False
        return any(keys.intersection(_NAMES) for keys in keys_of_some(folder))

    def entries(self, source: Path) -> Iterator[Entry]:
        folder = _att_folder(source)
        beside = folder.with_name(folder.name.removesuffix("_att"))
        others = {
            kind: beside.with_name(f"{beside.name}_{kind}")
            for kind in ("fc", "box")
            if folder.name.endswith("_att") and beside.with_name(f"{beside.name}_{kind}").is_dir()
        }
        for path in sorted_files(folder, ".npz"):

            def load(path: Path = path) -> ImageFeatures:
                return _record(path, others)

            where = f"{folder.name}/{path.name}"
            yield Entry(path.name.removesuffix(".npz"), where, load, by_id=True)

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        stream = next((name for name in ("regions", "grids") if name in cache.streams), None)
        if stream is None:
            raise CacheError(f"{cache.path}: has neither regions nor grids, which cocobu needs")
        for kind in ("att", "fc", "box"):
            (target / f"cocobu_{kind}").mkdir(exist_ok=True)
        for record in cache:
            name = safe_name(record.image_id, target)
            att = target / "cocobu_att" / f"{name}.npz"
            if not att.exists():  # written last
                _write(target, name, record, stream)
            on_done(1)


def _att_folder(source: Path) -> Path:
    """The folder of the `.npz`: the one given, or the only `*_att` in it."""
    inner = sorted(path for path in source.glob("*_att") if path.is_dir())
    if len(inner) > 1:
        raise CacheError(f"{source}: holds {', '.join(p.name for p in inner)}; give one of them")
    return inner[0] if inner else source


def _record(path: Path, others: dict[str, Path]) -> ImageFeatures:
    arrays = read_npz(path)
    key = next((name for name in _NAMES if name in arrays), "feat")
    values = part(arrays, key)
    if values.ndim == 3:
        found = record_of(rows(values.reshape(-1, values.shape[2]), key), "grids")
        found.grid_shape["grids"] = (int(values.shape[0]), int(values.shape[1]))
    else:
        found = record_of(rows(values, key))  # (N, D)
    name = path.name.removesuffix(".npz") + ".npy"
    if "fc" in others:
        vector = _npy(others["fc"] / name).reshape(1, -1)  # (1, E)
        found.streams["global"] = rows(vector, f"{others['fc'].name}/{name}")
    if "box" in others and "regions" in found.streams:
        what, count = f"{others['box'].name}/{name}", len(found.streams["regions"])
        found.boxes["regions"] = box_rows(_npy(others["box"] / name), what, count)
    return found


def _npy(path: Path) -> np.ndarray:
    try:
        found: np.ndarray = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise FormatError(f"{path.parent.name}/{path.name} is missing") from error
    except (OSError, ValueError, EOFError) as error:
        raise FormatError(f"{path.parent.name}/{path.name} cannot be read ({error})") from error
    return found


def _write(target: Path, name: str, record: ImageFeatures, stream: str) -> None:
    features = record.streams[stream].astype(np.float32)  # (N, D)
    whole = record.streams.get("global")
    vector = features.mean(axis=0) if whole is None else whole[0].astype(np.float32)  # (E,)
    write_whole(target / "cocobu_fc" / f"{name}.npy", lambda file: np.save(file, vector))
    if stream in record.boxes and stream == "regions":
        boxes = record.boxes[stream]
        write_whole(target / "cocobu_box" / f"{name}.npy", lambda file: np.save(file, boxes))
    if stream in record.grid_shape:
        features = features.reshape(*record.grid_shape[stream], -1)  # (height, width, D)
    write_whole(
        target / "cocobu_att" / f"{name}.npz",
        lambda file: np.savez_compressed(file, feat=features),
    )
