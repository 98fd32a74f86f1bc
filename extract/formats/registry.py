"""All foreign formats by name, and which of them a file or folder is in."""

from __future__ import annotations

from pathlib import Path

from extract.errors import CacheError
from extract.formats.base import Format
from extract.formats.boxed_npz import BoxedNpz
from extract.formats.butd_tsv import ButdTsv
from extract.formats.cocobu import Cocobu
from extract.formats.dlct_hdf5 import DlctHdf5
from extract.formats.grid_hdf5 import GridHdf5
from extract.formats.grid_pth import GridPth
from extract.formats.grit_hdf5 import GritHdf5
from extract.formats.m2_hdf5 import M2Hdf5
from extract.nearest import hint

_ALL: tuple[Format, ...] = (
    M2Hdf5(),
    DlctHdf5(),
    GridHdf5("rstnet-hdf5", "grids", "HDF5: {id}_grids (RSTNet, S2-Transformer, DIFNet)"),
    GridHdf5("difnet-hdf5", "features", "HDF5: {id}_features that are grids (DIFNet's own)"),
    GritHdf5(),
    ButdTsv("butd-tsv", "TSV of image_id, image_w, image_h ... (bottom-up-attention)"),
    ButdTsv("lxmert-tsv", "TSV of img_id, img_h, img_w, objects_id ... (LXMERT)"),
    Cocobu(),
    BoxedNpz(
        "milvlg-npz",
        "bbox",
        "folder of {id}.npz: x, bbox, num_bbox ... (bottom-up-attention.pytorch)",
        whole_names=False,
    ),
    BoxedNpz(
        "rosita-npz", "boxes", "folder of {file}.npz: x, boxes ... (ROSITA)", whole_names=True
    ),
    GridPth(),
)
FORMATS: dict[str, Format] = {each.name: each for each in _ALL}


def get(name: str) -> Format:
    """The format of that name. Raises CacheError with the nearest name."""
    name = name.replace("_", "-")
    if name not in FORMATS:
        raise CacheError(f"no format {name!r}{hint(name, FORMATS)}")
    return FORMATS[name]


def guess(source: Path) -> Format:
    """The format that a file or folder is in. Raises CacheError when none or several fit."""
    try:
        fitting = [each for each in FORMATS.values() if each.recognises(source)]
    except OSError as error:
        raise CacheError(f"{source}: cannot be read ({error})") from error
    if len(fitting) != 1:
        fits = ", ".join(each.name for each in fitting) or "none"
        raise CacheError(
            f"{source}: its format cannot be told ({fits} of them fit); name it with --format,"
            f" one of {', '.join(FORMATS)}"
        )
    return fitting[0]
