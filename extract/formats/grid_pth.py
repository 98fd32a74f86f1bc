"""grid-feats-vqa: a folder of `{id}.pth`, each a tensor (1, D, height, width) of the last map."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from extract.cache import FeatureCache
from extract.errors import CacheError
from extract.formats.base import (
    Entry,
    FormatError,
    record_of,
    rows,
    safe_name,
    some_files,
    sorted_files,
)
from extract.formats.npz import write_whole
from extract.records import ImageFeatures


class GridPth:
    name = "grid-pth"
    summary = "folder of {id}.pth: grids as tensors (1, D, height, width) (grid-feats-vqa)"
    needs = ("grids",)
    known: tuple[str, ...] = ()
    single_file = False

    def recognises(self, source: Path) -> bool:
        return bool(some_files(source, ".pth"))

    def entries(self, source: Path) -> Iterator[Entry]:
        for path in sorted_files(source, ".pth"):

            def load(path: Path = path) -> ImageFeatures:
                return _record(path)

            yield Entry(path.name.removesuffix(".pth"), path.name, load, by_id=True)

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        for record in cache:
            path = target / f"{safe_name(record.image_id, target)}.pth"
            shape = record.grid_shape.get("grids")
            if shape is None:
                raise CacheError(f"{target}: the grid of image {record.image_id!r} has no shape")
            if not path.exists():
                cells = record.streams["grids"].astype(np.float32)  # (h w, D)
                tensor = torch.from_numpy(cells.T.reshape(1, -1, *shape).copy())  # (1, D, h, w)
                write_whole(path, lambda file, tensor=tensor: torch.save(tensor, file))  # type: ignore[misc]
            on_done(1)


def _record(path: Path) -> ImageFeatures:
    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, OSError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"cannot be read as a tensor ({str(error).splitlines()[0]})") from error
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 4 or tensor.shape[0] != 1:
        shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise FormatError(f"holds {shape}, wanted a tensor (1, D, height, width)")
    values = tensor if tensor.dtype == torch.float16 else tensor.float()
    cells = values[0].flatten(1).T.contiguous().numpy()  # (h w, D)
    found = record_of(rows(cells, "the tensor"), "grids")
    found.grid_shape["grids"] = (int(tensor.shape[2]), int(tensor.shape[3]))
    return found
