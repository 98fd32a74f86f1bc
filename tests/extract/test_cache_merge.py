"""Merging: the same bytes whatever the order, and nothing that does not belong together."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from extract.cache import FeatureCache, ImageFeatures, Stream
from extract.cache_merge import joined_meta, merge
from extract.cache_summary import inspect
from extract.cache_verify import verify
from extract.errors import CacheError
from extract.writer import CacheWriter
from tests.extract.cache_records import META, STREAMS, assert_same, flip, record, write_cache
from tests.extract.test_cache_writer import limited

pytestmark = pytest.mark.usefixtures("quick_sync")


def test_merged_file_equals_the_folder(tmp_path: Path) -> None:
    ids = [f"i{k}" for k in range(23)]
    folder = write_cache(tmp_path / "features", ids[20:], ids[5:20], ids[:5])
    out, done = tmp_path / "new" / "merged.h5", list[int]()
    assert merge([folder], out, on_done=done.append) == sum(done) == 23
    found, source = FeatureCache(out), FeatureCache(folder)
    assert found.ids == tuple(sorted(ids))
    assert found.streams == source.streams and found.fingerprint() == source.fingerprint()
    assert found.meta == source.meta
    for features in found:
        assert_same(features, record(features.image_id))
    assert verify(out, dict.fromkeys(ids)).sound
    with h5py.File(out) as file:  # with h5py alone
        assert file["image_id"].asstr()[:].tolist() == sorted(ids)
        start, stop = file["regions/offsets"][3:5]
        given = record(sorted(ids)[3]).boxes["regions"]
        np.testing.assert_array_equal(file["regions/boxes"][start:stop], given)
    assert sorted(p.name for p in out.parent.iterdir()) == ["merged.h5"]


def test_any_order_gives_the_same_bytes(tmp_path: Path) -> None:
    parts = [write_cache(tmp_path / f"part{k}", [f"a{k}", f"b{k}"]) for k in range(3)]
    files = set()
    for number, order in enumerate(itertools.permutations(parts)):
        merge(list(order), tmp_path / f"{number}.h5")
        files.add((tmp_path / f"{number}.h5").read_bytes())
    merge(parts[:2], tmp_path / "two.h5")
    merge([parts[2] / "shard-0-00000.h5", tmp_path / "two.h5"], tmp_path / "twice.h5")
    files.add((tmp_path / "twice.h5").read_bytes())
    assert len(files) == 1


def test_what_a_killed_merge_left_is_removed(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["x"])
    (tmp_path / ".m.h5.999999.tmp").write_bytes(b"half")
    merge([a], tmp_path / "m.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "m.h5"]


def test_versions_are_kept_in_order(tmp_path: Path) -> None:
    new = {**META, "versions": {"torch": "2.15.0", "timm": "1"}}
    a = write_cache(tmp_path / "a", ["a"])
    b = write_cache(tmp_path / "b", ["b"], meta=new)
    merge([b, a], tmp_path / "m.h5")
    assert FeatureCache(tmp_path / "m.h5").meta["versions"] == {
        "torch": ["2.14.1", "2.15.0"],
        "timm": "1",
    }
    x, y, z = ({"v": value} for value in "xyz")
    assert joined_meta([joined_meta([z, x]), y]) == joined_meta([x, y, z]) == {"v": ["x", "y", "z"]}


def test_different_settings_are_refused(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["a"])
    b = write_cache(tmp_path / "b", ["b"], meta={**META, "settings": {"size": 448}})
    with pytest.raises(CacheError, match="a and .*b were made .*\n  settings.size: 224 / 448\n"):
        merge([a, b], tmp_path / "m.h5")
    with CacheWriter(tmp_path / "c", META, {"grids": STREAMS["grids"]}) as writer:
        writer.commit([bare("c", "grids", 8)])
    with pytest.raises(CacheError, match="stream regions: Stream.width=6.* / absent"):
        merge([a, tmp_path / "c"], tmp_path / "m.h5")
    assert not (tmp_path / "m.h5").exists()


def bare(image: str, stream: str, width: int) -> ImageFeatures:
    rows = {stream: np.ones((2, width), dtype=np.float32)}
    return ImageFeatures(image_id=image, width=9, height=9, streams=rows)


def test_caches_that_know_different_things_are_refused(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["a"])
    with CacheWriter(tmp_path / "b", META, STREAMS) as writer:
        features = record("b")
        features.extras = {}
        writer.commit([features])
    with pytest.raises(CacheError, match="image 'b': stream 'regions' has .*'a' has .*objects"):
        merge([a, tmp_path / "b"], tmp_path / "m.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_cache_given_twice_is_said_to_be(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["x"])
    for again in (a, tmp_path / "." / "b" / ".." / "a", a / "shard-0-00000.h5"):
        (tmp_path / "b").mkdir(exist_ok=True)
        with pytest.raises(CacheError, match="the same cache is given twice: .*; give it once"):
            merge([a, again], tmp_path / "m.h5")
    assert not (tmp_path / "m.h5").exists()


def test_duplicates_name_both_places(tmp_path: Path) -> None:
    a, b = write_cache(tmp_path / "a", ["x", "y"]), write_cache(tmp_path / "b", ["z"], ["y"])
    with pytest.raises(CacheError, match="'y' is in .*a/shard-0-00000.h5 and in .*b/shard-0-00001"):
        merge([a, b], tmp_path / "m.h5")


def test_damaged_image_is_named(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["x", "y"])
    shard = a / "shard-0-00000.h5"
    with h5py.File(shard) as file:
        place = file["grids/rows"].id.get_offset() + 6 * 8 * 2  # the first row of y
    flip(shard, place)
    with pytest.raises(CacheError, match="image 'y': the rows or boxes of stream 'grids' changed"):
        merge([a], tmp_path / "m.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_targets_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = write_cache(tmp_path / "a", [f"i{k}" for k in range(100)])
    out = tmp_path / "m.h5"
    with pytest.raises(CacheError, match="m.h5: cannot be written .File too large.; nothing was"):
        limited(9_000, lambda: merge([a], out))
    with pytest.raises(CacheError, match="/proc/none: cannot be written to .No such file"):
        merge([a], Path("/proc/none/m.h5"))
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(CacheError, match="m.h5: needs about 0.. MB, .* has 0.0 MB free"):
        merge([a], out)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    merge([a], out)
    with pytest.raises(CacheError, match="m.h5 is there already"):
        merge([a], out)


def test_empty_cache(tmp_path: Path) -> None:
    empty = write_cache(tmp_path / "a")
    assert len(FeatureCache(empty)) == 0 and verify(empty).sound
    assert inspect(empty)["streams"]["grids"]["rows"] == 0
    with pytest.raises(CacheError, match="no image in"):
        merge([empty], tmp_path / "m.h5")


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    rows, width = 200, 512
    with CacheWriter(tmp_path / "a", META, {"grids": Stream(width)}) as writer:
        for start in range(0, 80, 10):
            images = [bare(f"i{k}", "grids", width) for k in range(start, start + 10)]
            for image in images:
                image.streams["grids"] = np.ones((rows, width), dtype=np.float16)
            writer.commit(images)
    tracemalloc.start()
    merge([tmp_path / "a"], tmp_path / "m.h5")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "m.h5").stat().st_size > 80 * rows * width * 2
    assert peak < 10 * rows * width * 2  # of 80 such images
