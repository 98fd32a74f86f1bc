"""Does verify find and name what is wrong, and nothing else?"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from extract.cache import FeatureCache, ImageFeatures
from extract.cache_merge import merge
from extract.cache_verify import Report, image_count, verify
from extract.durable import write_text
from extract.errors import CacheError
from extract.records import facts_checksum, rows_checksum
from extract.shard_writer import write_shard
from extract.writer import CacheWriter
from tests.extract.cache_records import META, STREAMS, assert_same, flip, record, write_cache

pytestmark = pytest.mark.usefixtures("quick_sync")
IDS = ["a", "b", "c", "d"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "features", IDS[:3], IDS[3:])


@pytest.fixture
def merged(cache: Path, tmp_path: Path) -> Path:
    merge([cache], tmp_path / "merged.h5")
    return tmp_path / "merged.h5"


def said(report: Report) -> str:
    return "\n".join(map(str, report.problems))


def place_of(path: Path, dataset: str, row: int) -> int:
    """The byte at which a row of a dataset lies."""
    with h5py.File(path) as file:
        found = file[dataset]
        return found.id.get_offset() + row * found.dtype.itemsize * int(np.prod(found.shape[1:]))


def rows_before(path: Path, stream: str, place: int) -> int:
    with h5py.File(path) as file:
        return int(file[f"{stream}/offsets"][place])


def replace_shard(folder: Path, records: list[ImageFeatures]) -> None:
    """Put other records into the first shard, and the journal in order."""
    shard = folder / "shard-0-00000.h5"
    totals = {name: sum(len(r.streams[name]) for r in records) for name in STREAMS}
    write_shard(shard, META, STREAMS, totals, records)
    journal = folder / "journal-0.jsonl"
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    lines[0]["sha256"] = hashlib.sha256(shard.read_bytes()).hexdigest()
    lines[0]["ids"] = [r.image_id for r in records]
    write_text(journal, "".join(json.dumps(line) + "\n" for line in lines), "test")


def test_sound_caches(cache: Path, merged: Path) -> None:
    for path in (cache, merged, cache / "shard-0-00000.h5"):
        seen: list[int] = []
        report = verify(path, on_done=seen.append)
        assert report.sound and report.advice() == []
        assert report.images == sum(seen) == image_count(path)
    assert verify(merged).images == 4


@pytest.mark.parametrize("form", ["folder", "file"])
@pytest.mark.parametrize(
    ("dataset", "what"),
    [
        ("regions/rows", "rows or boxes of stream 'regions'"),
        ("grids/rows", "rows or boxes of stream 'grids'"),
        ("regions/boxes", "rows or boxes of stream 'regions'"),
        ("regions/objects", "names, size, shapes or extras"),
        ("regions/object_scores", "names, size, shapes or extras"),
    ],
)
def test_flipped_byte_of_a_row_names_the_image(
    cache: Path, merged: Path, form: str, dataset: str, what: str
) -> None:
    path = cache / "shard-0-00000.h5" if form == "folder" else merged
    row = rows_before(path, dataset.split("/")[0], 1)
    flip(path, place_of(path, dataset, row))
    (problem,) = verify(cache if form == "folder" else merged).problems
    assert problem.image_id == "b" and problem.file == path
    assert what in problem.what and "changed since" in problem.what


@pytest.mark.parametrize(
    "dataset", ["image_id", "file", "size", "grids/grid_shape", "checksum", "regions/checksum"]
)
def test_flipped_byte_of_a_fact_names_the_image(merged: Path, dataset: str) -> None:
    flip(merged, place_of(merged, dataset, 2), 0x08)
    (problem,) = verify(merged).problems
    assert problem.image_id == ("k" if dataset == "image_id" else "c")  # that bit makes c a k


def test_flipped_offset(merged: Path) -> None:
    flip(merged, place_of(merged, "regions/offsets", 2), 0x40)
    with h5py.File(merged) as file:
        assert np.diff(file["regions/offsets"][:]).min() < 0
    assert "/regions/offsets falls at image 'c'" in said(verify(merged))


def test_any_flipped_byte_is_found_or_harmless(merged: Path) -> None:
    good = merged.read_bytes()
    draw = random.Random(3)
    for place in sorted(draw.sample(range(len(good)), 150)):
        merged.write_bytes(good)
        flip(merged, place, 1 << draw.randrange(8))
        if verify(merged).sound:  # a byte that nothing uses
            found = FeatureCache(merged)
            assert found.ids == tuple(IDS) and found.meta == META
            for features in found:
                assert_same(features, record(features.image_id))


def test_settings_changed_in_a_merged_file(merged: Path) -> None:
    with h5py.File(merged, "r+") as file:
        file.attrs["meta"] = np.bytes_(file.attrs["meta"].replace(b"224", b"448"))
    assert "settings (meta) changed" in said(verify(merged))


def test_settings_of_a_shard_from_elsewhere(cache: Path, tmp_path: Path) -> None:
    meta = {**META, "settings": {"size": 448}}
    other = write_cache(tmp_path / "other", IDS[:3], meta=meta)
    os.replace(other / "shard-0-00000.h5", cache / "shard-0-00000.h5")
    assert "was made otherwise than cache.json says" in said(verify(cache))


def test_byte_outside_of_all_data(cache: Path) -> None:
    with (cache / "shard-0-00001.h5").open("ab") as file:
        file.write(b"\0")
    (problem,) = verify(cache).problems
    assert problem.image_id is None and "sha256 in the journal" in problem.what


@pytest.mark.parametrize("change", ["cut", "gone", "text"])
def test_file_that_cannot_be_read(cache: Path, change: str) -> None:
    shard = cache / "shard-0-00000.h5"
    if change == "cut":
        os.truncate(shard, shard.stat().st_size // 2)
    elif change == "gone":
        shard.unlink()
    else:
        shard.write_text("text", encoding="utf-8")
    report = verify(cache)
    assert report.images == 1  # the good beside the bad
    assert "shard-0-00000.h5: cannot be read, with it 3 images: a, b, c" in said(report)
    assert f"rm {shard}" in report.advice()[0] and f"--out {cache}" in report.advice()[0]


def test_advice_mends_the_cache(cache: Path) -> None:
    shard = cache / "shard-0-00000.h5"
    flip(shard, place_of(shard, "grids/rows", 0))
    assert not verify(cache).sound
    shard.unlink()
    with CacheWriter(cache, META, STREAMS) as writer:
        assert writer.done == {"d"}
        writer.commit([record(image) for image in "abc"])
    assert verify(cache, dict.fromkeys(IDS)).sound


def test_advice_can_be_pasted(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "my features", ["a"], ["b"])
    shard = cache / "shard-0-00001.h5"
    shard.write_bytes(b"no HDF5")
    bad, missing = verify(cache, {"c": None}).advice()
    assert shlex.split(bad.partition("it makes only their images again: ")[2]) == ["rm", str(shard)]
    assert shlex.split(missing)[-2:] == ["--out", str(cache)]


def test_duplicates_name_both_places(cache: Path) -> None:
    replace_shard(cache, [record("a"), record("d"), record("a")])
    report = verify(cache)
    assert [(p.file.name, p.image_id) for p in report.problems] == [
        ("shard-0-00000.h5", "a"),
        ("shard-0-00001.h5", "d"),
    ]
    assert f"{cache / 'shard-0-00000.h5'} has it too" in report.problems[1].what
    with pytest.raises(CacheError, match="image 'a' is in .*00000.h5 and again in .*00000.h5"):
        FeatureCache(cache)


def bad_values() -> Iterator[tuple[str, ImageFeatures, str]]:
    nan, outside, grid = record("x"), record("x"), record("x")
    nan.streams["grids"][2, 3] = np.nan
    yield "nan", nan, "image 'x' .*'grids': row 2, column 3 is nan, which is not finite"
    outside.boxes["regions"][0, 2] = 300
    yield "outside", outside, "image 'x' .*'regions': box 0 is .* inside the image of 90 x 60"
    grid.grid_shape["grids"] = (4, 4)
    yield "grid", grid, "image 'x' .*4 x 4 cells has 6 rows"


@pytest.mark.parametrize(
    ("bad", "what"), [v[1:] for v in bad_values()], ids=[v[0] for v in bad_values()]
)
def test_values_that_no_writer_of_ours_keeps(cache: Path, bad: ImageFeatures, what: str) -> None:
    replace_shard(cache, [record("w"), bad])
    report = verify(cache)
    assert len(report.problems) == 1
    with pytest.raises(AssertionError, match=what):
        raise AssertionError(said(report))


def test_wanted_images(cache: Path) -> None:
    with CacheWriter(cache, META, STREAMS) as writer:
        writer.fail("e", "photos/e.jpg", "truncated", "12 bytes")
        writer.commit([record("37209"), record("dir/x.jpg")])
    names = ["a", "photos/b.jpg", "COCO_val2014_000000037209.jpg", "dir/x.jpg", "e.jpg", "f"]
    report = verify(cache, dict.fromkeys(names))
    assert report.problems == [] and not report.sound
    assert report.missing == {
        "e.jpg": "failed in extraction: truncated: 12 bytes",
        "f": "not in the cache",
    }
    assert "pipeline extract" in report.advice()[0]


def test_no_cache(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CacheError, match="no .*feature cache"):
            verify(path)


def test_file_without_checksums_of_its_facts(merged: Path) -> None:
    with h5py.File(merged, "r+") as file:
        del file["checksum"]
    assert "has no checksums" in said(verify(merged))


def test_checksums_cover_every_part() -> None:
    plain = record("a")
    first = facts_checksum(plain)
    rows = plain.streams["regions"].astype(np.float16)
    boxes = plain.boxes["regions"]
    assert rows_checksum(rows, boxes) != rows_checksum(rows, None) != rows_checksum(-rows, None)
    changed = [record("a") for _ in range(6)]
    changed[0].image_id, changed[1].file, changed[2].width = "b", "b.jpg", 91
    changed[3].grid_shape["grids"] = (3, 2)
    changed[4].extras["regions"]["objects"] += 1
    changed[5].streams["regions"] = np.vstack([plain.streams["regions"]] * 2)
    assert len({first, *map(facts_checksum, changed)}) == 7
