"""Comparing caches: pairs of boxes, cosines, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from extract.cache import FeatureCache, ImageFeatures, Stream
from extract.cache_compare import agreement, box_iou, compare, cosine, match
from extract.errors import CacheError
from extract.writer import CacheWriter
from tests.extract.cache_records import META, STREAMS, record, write_cache

pytestmark = pytest.mark.usefixtures("quick_sync")


def write(folder: Path, records: list[ImageFeatures], **meta: object) -> Path:
    with CacheWriter(folder, {**META, **meta}, STREAMS) as writer:
        writer.commit(records)
    return folder


def test_a_cache_agrees_with_itself(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["x", "y"], ["z"])
    facts = compare(a, a)
    assert facts["shared"] == 3
    for key in ("only_a", "only_b", "settings", "other_size", "streams_only_a", "streams_only_b"):
        assert facts[key] == []
    for stream in facts["streams"].values():
        assert stream["iou"] == 1 and stream["unmatched"] == 0
        assert stream["cosine"] == pytest.approx(1) and stream["cosine_min"] == pytest.approx(1)


def test_reordered_rows_still_pair(tmp_path: Path) -> None:
    turned = record("x")
    assert len(turned.streams["regions"]) > 1
    for part in (turned.streams, turned.boxes, turned.extras["regions"]):
        for key in part:
            part[key] = part[key][::-1].copy()
    a, b = write_cache(tmp_path / "a", ["x"]), write(tmp_path / "b", [turned])
    for stream in compare(a, b)["streams"].values():
        assert stream["iou"] == pytest.approx(1) and stream["cosine"] == pytest.approx(1)


def test_differences_are_measured_and_the_worst_come_first(tmp_path: Path) -> None:
    ids = [f"i{k}" for k in range(6)]
    records = [record(image) for image in ids]
    records[2].streams["grids"] *= -1
    records[4].streams["grids"][0] = 0
    records[5].width = 95
    records.append(record("only-b"))
    a = write_cache(tmp_path / "a", [*ids, "only-a"])
    b = write(tmp_path / "b", records, preset="other")
    facts = compare(a, b, worst=2)
    assert (facts["only_a"], facts["only_b"]) == (["only-a"], ["only-b"])
    assert facts["settings"] == ["preset: toy / other"]
    assert facts["other_size"] == ["i5"]
    worst = facts["streams"]["grids"]["worst"]
    assert [image["image_id"] for image in worst] == ["i2", "i4"]
    assert worst[0]["cosine"] == pytest.approx(-1) and worst[1]["cosine_min"] == 0
    assert worst[1]["cosine"] == pytest.approx(5 / 6)
    assert facts["streams"]["grids"]["cosine"] == pytest.approx((4 - 1 + 5 / 6) / 6)
    assert json.loads(json.dumps(facts)) == facts


def test_other_width(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["x"])
    wide = record("x")
    wide.streams["grids"] = np.ones((6, 9))
    with CacheWriter(tmp_path / "b", META, {**STREAMS, "grids": Stream(9)}) as writer:
        writer.commit([wide])
    grids = compare(a, tmp_path / "b")["streams"]["grids"]
    assert grids["widths"] == [8, 9] and grids["iou"] == 1
    assert grids["cosine"] is None and grids["cosine_min"] is None


def test_nothing_in_common(tmp_path: Path) -> None:
    a, b = write_cache(tmp_path / "a", ["x"]), write_cache(tmp_path / "b", ["y"])
    with pytest.raises(CacheError, match="no image in common: the one begins x, the other y"):
        compare(a, b)


def test_without_boxes_rows_pair_by_order() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 4))
    plain = [
        ImageFeatures(image_id="x", width=9, height=9, streams={"s": part})
        for part in (rows, 2 * rows, rows[:2])
    ]
    same = agreement(plain[0], plain[1], "s")
    assert (same.matched, same.unmatched, same.iou) == (3, 0, None)
    assert same.cosine == pytest.approx(1)
    fewer = agreement(plain[0], plain[2], "s")
    assert (fewer.matched, fewer.unmatched, fewer.cosine) == (0, 5, None)


def test_iou_by_hand() -> None:
    a = np.array([[0, 0, 10, 10], [5, 5, 5, 5]], dtype=np.float32)
    b = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30]], dtype=np.float32)
    np.testing.assert_allclose(box_iou(a, b), [[1, 1 / 3, 0], [0, 0, 0]])


def one_by_one(overlap: np.ndarray) -> set[tuple[int, int]]:
    """Greedy pairs, the plain way."""
    pairs, overlap = set(), overlap.copy()
    while overlap.max(initial=0) > 0:
        i, j = np.unravel_index(overlap.argmax(), overlap.shape)
        pairs.add((int(i), int(j)))
        overlap[i, :] = overlap[:, j] = 0
    return pairs


@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_those_of_one_by_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    a, b = (
        np.hstack([low := draw.integers(0, 20, size=(n, 2)), low + draw.integers(1, 20, (n, 2))])
        for n in draw.integers(1, 25, size=2)
    )
    left, right, values = match(a, b)
    assert set(zip(left.tolist(), right.tolist(), strict=True)) == one_by_one(box_iou(a, b))
    np.testing.assert_array_equal(values, box_iou(a, b)[left, right])


def test_cosine_of_zero_rows() -> None:
    p, q = np.array([[0, 0], [0, 0], [3, 4]]), np.array([[0, 0], [1, 0], [4, 3]])
    np.testing.assert_allclose(cosine(p, q), [1, 0, 24 / 25])


def test_nothing_overlaps() -> None:
    boxes = np.array([[0, 0, 1, 1]], dtype=np.float32)
    left, right, values = match(boxes, boxes + 5)
    assert len(left) == len(right) == len(values) == 0
    pair = [
        ImageFeatures(
            image_id="x", width=9, height=9, streams={"s": np.ones((1, 2))}, boxes={"s": b}
        )
        for b in (boxes, boxes + 5)
    ]
    found = agreement(*pair, "s")
    assert (found.matched, found.unmatched, found.iou, found.cosine) == (0, 2, 0.0, None)


def test_reading_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    a = write_cache(tmp_path / "a", ["x"])
    before = {p.name: p.read_bytes() for p in a.iterdir()}
    compare(a, a)
    FeatureCache(a).read("x")
    assert {p.name: p.read_bytes() for p in a.iterdir()} == before
