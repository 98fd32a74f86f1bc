"""Reading a cache back: round trips, processes, and files that are no cache."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import resource
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from extract.cache import FeatureCache, ImageFeatures, Stream, differences, image_id_of
from extract.cache_verify import verify
from extract.errors import CacheError
from extract.share import Share
from extract.writer import CacheWriter
from tests.extract.cache_records import META, assert_same, record, write_cache

pytestmark = pytest.mark.usefixtures("quick_sync")
IDS = [f"i{k}" for k in range(12)]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "features", IDS[:5], IDS[5:6], IDS[6:])


@pytest.mark.parametrize(
    ("name", "image_id"),
    [
        ("COCO_val2014_000000037209.jpg", "37209"),
        ("/data/val2014/COCO_val2014_000000037209.jpg", "37209"),
        ("C:\\photos\\COCO_train2014_000000000009.jpg", "9"),
        ("COCO_test2015_000000000001", "1"),
        ("1000268201_693b08cb0e.jpg", "1000268201_693b08cb0e"),
        ("a.b.jpeg", "a.b"),
        (".hidden", ".hidden"),
        ("000000037209.jpg", "37209"),
        ("000000000000.png", "0"),
        ("000000037209", "37209"),
        ("00000037209.jpg", "00000037209"),
        ("x000000037209.jpg", "x000000037209"),
        ("v1.2", "v1.2"),
        ("v1.2.PNG", "v1.2"),
        ("photo.data", "photo.data"),
        ("a.jpg.png", "a.jpg"),
    ],
)
def test_ids_of_names(name: str, image_id: str) -> None:
    assert image_id_of(name) == image_id


def test_reads_what_was_written(cache: Path) -> None:
    found = FeatureCache(cache)
    assert found.ids == tuple(IDS)
    assert len(found) == 12 and "i3" in found and "i12" not in found
    assert found.meta == META
    assert found.streams == {"grids": Stream(8), "regions": Stream(6)}
    for image, features in zip(IDS, found, strict=True):
        assert_same(features, record(image))
    swapped = [found.read(image, ["regions"]) for image in ("i7", "i0")]
    assert [r.image_id for r in swapped] == ["i7", "i0"]
    assert list(swapped[0].streams) == ["regions"]
    swapped[0].streams["regions"][:] = 0  # the caller's own
    assert_same(found.read("i7"), record("i7"))


def test_a_shard_alone_is_a_cache(cache: Path) -> None:
    found = FeatureCache(cache / "shard-0-00001.h5")
    assert found.ids == ("i5",)
    assert_same(found.read("i5"), record("i5"))
    assert found.fingerprint() == FeatureCache(cache).fingerprint()


@st.composite
def images(draw: st.DrawFn) -> list[ImageFeatures]:
    ids = draw(
        st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    dtype = draw(st.sampled_from(["float16", "float32"]))
    found = []
    for image in ids:
        count = draw(st.integers(1, 4))
        finite = arrays.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False)
        rows = draw(arrays.arrays(dtype, (count, 3), elements=finite))
        corners = draw(arrays.arrays(np.float32, (count, 2, 2), elements=st.floats(0, 9, width=32)))
        classes = draw(arrays.arrays(np.int32, (count,)))
        found.append(
            ImageFeatures(
                image_id=image,
                width=draw(st.integers(9, 2**31 - 1)),
                height=9,
                streams={"regions": rows},
                boxes={"regions": np.sort(corners, axis=1).reshape(count, 4)},
                extras={"regions": {"objects": classes}},
                file=draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"))),
            )
        )
    return found


@settings(max_examples=25, deadline=None)
@given(images(), st.integers(1, 3))
def test_round_trip(records: list[ImageFeatures], size: int) -> None:
    dtype = str(records[0].streams["regions"].dtype)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "features"
        with CacheWriter(folder, META, {"regions": Stream(3, dtype)}) as writer:
            for start in range(0, len(records), size):
                writer.commit(records[start : start + size])
        assert verify(folder).sound
        for found, given_ in zip(FeatureCache(folder), records, strict=True):
            assert (found.image_id, found.file) == (given_.image_id, given_.file)
            assert (found.width, found.height) == (given_.width, given_.height)
            for a, b in (
                (found.streams["regions"], given_.streams["regions"]),
                (found.boxes["regions"], given_.boxes["regions"]),
                (found.extras["regions"]["objects"], given_.extras["regions"]["objects"]),
            ):
                assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_streams_may_have_no_boxes(tmp_path: Path) -> None:
    rows = np.ones((2, 3))
    bare = ImageFeatures(image_id="x", width=5, height=5, streams={"regions": rows})
    with CacheWriter(tmp_path / "f", META, {"regions": Stream(3)}) as writer:
        writer.commit([bare])
    found = FeatureCache(tmp_path / "f").read("x")
    assert found.boxes == {} and found.extras == {} and found.grid_shape == {}
    assert verify(tmp_path / "f").sound


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes(cache: Path, method: str) -> None:
    found = FeatureCache(cache)
    found.read("i0")  # files are open when the workers start
    with multiprocessing.get_context(method).Pool(2) as pool:
        records = pool.map(found.read, IDS, chunksize=3)
    for image, features in zip(IDS, records, strict=True):
        assert_same(features, record(image))


def test_pickle_is_small_and_reads(cache: Path) -> None:
    found = FeatureCache(cache)
    for image in IDS:
        found.read(image)
    copy = pickle.loads(pickle.dumps(found))
    assert_same(copy.read("i11"), record("i11"))
    found.close()
    assert_same(found.read("i11"), record("i11"))


def test_more_shards_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.shard._OPEN_FILES", 4)
    ids = [f"i{k}" for k in range(25)]
    folder = write_cache(tmp_path / "features", *[[image] for image in ids])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (here + 12, before[1]))
    try:
        found = FeatureCache(folder)
        for image in [*ids, *reversed(ids)]:
            assert_same(found.read(image), record(image))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("keep", [0, 100, 3000])
def test_cut_file(cache: Path, keep: int) -> None:
    shard = cache / "shard-0-00000.h5"
    os.truncate(shard, keep)
    with pytest.raises(CacheError, match="shard-0-00000.h5: not a sound HDF5.*pipeline"):
        FeatureCache(cache).read("i0")
    assert_same(FeatureCache(cache).read("i6"), record("i6"))  # the good beside the bad


def test_file_cut_while_open(cache: Path) -> None:
    found = FeatureCache(cache)
    found.read("i0")
    os.truncate(cache / "shard-0-00000.h5", 1000)
    with pytest.raises(CacheError, match="shard-0-00000.h5: has .* bytes at"):
        found.read("i4")


def test_foreign_files(tmp_path: Path) -> None:
    foreign = tmp_path / "coco_detections.hdf5"
    with h5py.File(foreign, "w") as file:
        file["37209_features"] = np.zeros((3, 4))
    with pytest.raises(CacheError, match="no schema, wanted .* its keys begin 37209_features"):
        FeatureCache(foreign)
    text = tmp_path / "features.h5"
    text.write_text("not HDF5", encoding="utf-8")
    with pytest.raises(CacheError, match="features.h5: not a sound HDF5"):
        FeatureCache(text)
    with pytest.raises(CacheError, match="no feature cache .no cache.json"):
        FeatureCache(tmp_path)
    with pytest.raises(CacheError, match="absent: no such feature cache; type pipeline extract"):
        FeatureCache(tmp_path / "absent")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"schema": 99}',
        '{"schema": 1, "meta": {}}',
        '{"schema": 1, "meta": {}, "streams": {"grids": {"width": 8, "dtype": "int8"}}}',
        "{",
    ],
)
def test_bad_description(cache: Path, text: str) -> None:
    (cache / "cache.json").write_text(text, encoding="utf-8")
    with pytest.raises(CacheError, match="cache.json"):
        FeatureCache(cache)


def test_cut_journal_line_is_passed_over(cache: Path) -> None:
    journal = cache / "journal-0.jsonl"
    whole = journal.read_bytes()
    for cut in (1, 5, 40):
        journal.write_bytes(whole[:-cut])
        assert FeatureCache(cache).ids == tuple(IDS[:6])


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        '{"shard": "../x.h5", "sha256": "", "ids": []}',
        '{"shard": "a"}',
        '{"shard": "shard-0-00000.h5", "sha256": "", "ids": [1]}',
        "",
    ],
)
def test_any_other_bad_journal_line_is_an_error(cache: Path, line: str) -> None:
    journal = cache / "journal-0.jsonl"
    journal.write_text(line + "\n" + journal.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(CacheError, match=r"journal-0.jsonl: line 1 is no line of a journal"):
        FeatureCache(cache)


def test_shard_missing_on_disk(cache: Path) -> None:
    (cache / "shard-0-00001.h5").unlink()
    with pytest.raises(
        CacheError,
        match="shard-0-00001.h5 is in the journal but not on disk; .*pipeline extract ... --out",
    ):
        FeatureCache(cache)


def test_shard_that_no_journal_names_is_ignored(cache: Path) -> None:
    (cache / "shard-0-00007.h5").write_bytes((cache / "shard-0-00000.h5").read_bytes())
    assert FeatureCache(cache).ids == tuple(IDS)


def test_swapped_shards_are_noticed(cache: Path) -> None:
    os.replace(cache / "shard-0-00002.h5", cache / "shard-0-00000.h5")
    (cache / "shard-0-00002.h5").write_bytes((cache / "shard-0-00001.h5").read_bytes())
    with pytest.raises(CacheError, match="shard-0-00000.h5: image 1 is not 'i1'"):
        FeatureCache(cache).read("i1")


def test_unknown_image_and_stream(cache: Path) -> None:
    found = FeatureCache(cache)
    with pytest.raises(CacheError, match="no image 'nobody' among its 12"):
        found.read("nobody")
    with pytest.raises(CacheError, match="no stream 'pyramid', it has grids, regions"):
        found.read("i0", ["pyramid"])


def test_two_ranks_are_one_cache(tmp_path: Path) -> None:
    from tests.extract.cache_records import STREAMS

    folder = tmp_path / "features"
    with CacheWriter(folder, META, STREAMS, Share(1, 2)) as second:
        second.fail("bad1", "bad1.jpg", "truncated", "3 bytes")
        with CacheWriter(folder, META, STREAMS, Share(0, 2)) as first:
            first.commit([record("a")])
            second.commit([record("b")])
            first.fail("bad0", "bad0.jpg", "truncated", "3 bytes")
    found = FeatureCache(folder)
    assert found.ids == ("a", "b")
    assert sorted(found.failures()) == ["bad0", "bad1"]
    assert sorted(p.name for p in folder.glob("*.h5")) == ["shard-0-00000.h5", "shard-1-00000.h5"]
    with CacheWriter(folder, META, STREAMS) as writer:
        assert writer.done == {"a", "b"}
        writer.commit([record("bad1")])
    assert sorted(FeatureCache(folder).failures()) == ["bad0"]


def test_differences_of_fingerprints() -> None:
    a = {"preset": "x", "settings.size": 224, "weights.file": "a.pth", "weights.sha256": "1"}
    assert differences(a, dict(a)) == []
    assert differences(a, {**a, "weights.file": "renamed.pth"}) == []
    assert differences(a, {**a, "settings.size": 448}) == ["settings.size: 224 / 448"]
    other = {**a, "weights.sha256": "2"}
    assert differences(a, other) == ["weights.sha256: 1 / 2"]
    assert differences({"x": 1}, {"y": 2}) == ["x: 1 / absent", "y: absent / 2"]
    assert json.loads(json.dumps(a)) == a
