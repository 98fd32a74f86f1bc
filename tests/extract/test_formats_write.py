"""Foreign feature files written: out and in again unchanged, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from extract.cache import FeatureCache
from extract.cache_export import export_features
from extract.cache_import import import_features
from extract.cache_verify import verify
from extract.errors import CacheError
from extract.formats import registry
from extract.formats.base import own_name
from extract.formats.dlct_hdf5 import alignment
from tests.extract.format_records import IDS, bring, cache_of, contents, record

pytestmark = pytest.mark.usefixtures("quick_sync")


WANTED: dict[str, tuple[str, ...]] = {  # format -> the streams that survive it
    "m2-hdf5": ("regions",),
    "dlct-hdf5": ("regions", "grids", "alignment"),
    "rstnet-hdf5": ("grids",),
    "difnet-hdf5": ("grids",),
    "grit-hdf5": ("grids", "regions"),
    "butd-tsv": ("regions",),
    "lxmert-tsv": ("regions",),
    "cocobu": ("regions", "global"),
    "milvlg-npz": ("regions",),
    "rosita-npz": ("regions",),
    "grid-pth": ("grids",),
}


@pytest.mark.parametrize("name", registry.FORMATS)
def test_out_and_in_again(tmp_path: Path, name: str) -> None:
    kind, cache = registry.get(name), cache_of(tmp_path / "cache")
    target = tmp_path / "foreign"
    assert export_features(cache, kind, target) == len(IDS)
    if name != "difnet-hdf5":  # looks as regions do
        assert registry.guess(target).name == name
    done = import_features([(target, kind)], tmp_path / "back")
    assert (done.done, done.failures) == (len(IDS), [])
    assert verify(tmp_path / "back", dict.fromkeys(IDS)).sound
    back = FeatureCache(tmp_path / "back")
    assert sorted(back.streams) == sorted(WANTED[name])
    for image in IDS:
        found, given = back.read(image), record(image)
        for stream in set(WANTED[name]) & set(given.streams):
            np.testing.assert_array_equal(found.streams[stream], given.streams[stream])
            if stream in found.boxes:
                np.testing.assert_array_equal(found.boxes[stream], given.boxes[stream])
        assert found.grid_shape in ({}, given.grid_shape)
        for key, values in found.extras.get("regions", {}).items():
            np.testing.assert_array_equal(values, given.extras["regions"][key])
        assert (found.width, found.height) in ((90, 60), (0, 0))
    # and once more: the foreign files are the same, array by array
    export_features(tmp_path / "back", kind, tmp_path / "again")
    assert contents(target) == contents(tmp_path / "again")


def test_grids_of_resnet_in_cocobu(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "cache", side=14, regions=False)
    export_features(cache, registry.get("cocobu"), tmp_path / "out")
    with np.load(tmp_path / "out" / "cocobu_att" / "9.npz") as arrays:
        assert arrays["feat"].shape == (14, 14, 6)
    mean = np.load(tmp_path / "out" / "cocobu_fc" / "9.npy")
    np.testing.assert_allclose(mean, record("9", side=14).streams["grids"].mean(0), rtol=1e-6)
    bring(tmp_path / "out" / "cocobu_att", tmp_path / "back")
    assert FeatureCache(tmp_path / "back").read("9").grid_shape == {"grids": (14, 14)}


def test_alignment_of_boxes_and_cells() -> None:
    """Both ends of a box lie in the last cell that begins at or before them."""
    boxes = np.array([[0, 0, 1, 1], [0.15, 0.3, 0.2, 0.35], [2 / 7, 0, 3 / 7, 0.1]])
    found = alignment(boxes, 7, 7).reshape(3, 7, 7)
    assert found[0].all()
    assert np.argwhere(found[1]).tolist() == [[2, 1]]
    assert np.argwhere(found[2]).tolist() == [[0, 2], [0, 3]]


def test_targets_that_are_there(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "cache")
    (tmp_path / "f.h5").write_bytes(b"x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "holiday.jpg").write_bytes(b"x")
    for name, target in (("m2-hdf5", "f.h5"), ("grid-pth", "full")):
        with pytest.raises(CacheError, match="is there already"):
            export_features(cache, registry.get(name), tmp_path / target)
    assert (tmp_path / "f.h5").read_bytes() == b"x"
    with pytest.raises(CacheError, match="holds something else"):
        export_features(cache, registry.get("grid-pth"), tmp_path / "full")


def test_a_stopped_export_goes_on(tmp_path: Path) -> None:
    cache, kind = cache_of(tmp_path / "cache"), registry.get("rosita-npz")

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_features(cache, kind, tmp_path / "out", on_done=stop)
    (first,) = (tmp_path / "out").glob("*.npz")
    before = first.stat().st_mtime_ns
    with pytest.raises(CacheError, match="something else"):
        export_features(cache, registry.get("milvlg-npz"), tmp_path / "out")
    export_features(cache, kind, tmp_path / "out")
    assert first.stat().st_mtime_ns == before
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [f"{i}.npz" for i in sorted(IDS)]
    with pytest.raises(KeyboardInterrupt):
        export_features(cache, registry.get("m2-hdf5"), tmp_path / "f.h5", on_done=stop)
    assert not list(tmp_path.glob("*.h5")) and not list(tmp_path.glob(".*"))


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".f.h5.999999.tmp").write_bytes(b"half")
    export_features(cache_of(tmp_path / "cache"), registry.get("m2-hdf5"), tmp_path / "f.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "f.h5"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lxmert-tsv", "lacks stream 'regions', which lxmert-tsv needs; it has grids"),
        ("m2-hdf5", "lacks stream 'regions'"),
    ],
)
def test_poor_caches_are_refused(tmp_path: Path, name: str, message: str) -> None:
    cache = cache_of(tmp_path / "cache", regions=False)
    with pytest.raises(CacheError, match=message):
        export_features(cache, registry.get(name), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ids_that_end_as_images_do_stay_two(tmp_path: Path) -> None:
    """As `--id relative-path` gives them."""
    ids = ["x.jpg", "x.png"]
    cache = cache_of(tmp_path / "cache", ids)
    for name in ("milvlg-npz", "rosita-npz"):
        assert export_features(cache, registry.get(name), tmp_path / name) == 2
        found = contents(tmp_path / name)
        assert sorted(found) == ["x.jpg.npz", "x.png.npz"]
        for image in ids:
            given = record(image).streams["regions"]
            np.testing.assert_array_equal(found[f"{image}.npz"]["x"], given)
    export_features(cache, registry.get("lxmert-tsv"), tmp_path / "f.tsv")
    lines = (tmp_path / "f.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ids


def test_a_files_name_loses_its_suffix(tmp_path: Path) -> None:
    given = record("9")
    given.file = "/photos/COCO_val2014_000000000009.jpg"
    assert own_name(given) == "COCO_val2014_000000000009.jpg"
    assert own_name(given, suffix=False) == "COCO_val2014_000000000009"
    given.file = "/photos/another.jpg"
    assert own_name(given, suffix=False) == "9"


@pytest.mark.parametrize(
    ("ids", "stored"),
    [
        (["7", "12"], [7, 12]),
        (["007", "7"], [b"007", b"7"]),
        (["\u0663", "3"], ["\u0663".encode(), b"3"]),  # a digit of another script
        (["9" * 19, "1"], [b"9" * 19, b"1"]),  # more than int64 holds
    ],
)
def test_ids_are_numbers_in_grit_only_where_none_is_lost(
    tmp_path: Path, ids: list[str], stored: list[int | bytes]
) -> None:
    export_features(cache_of(tmp_path / "c", ids), registry.get("grit-hdf5"), tmp_path / "f")
    assert contents(tmp_path / "f")["image_ids"] == stored
    assert bring(tmp_path / "f", tmp_path / "back").done == 2
    assert FeatureCache(tmp_path / "back").ids == tuple(ids)
