"""Writing a cache: kills, full disks, second writers, other settings and bad numbers."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from extract.cache import FeatureCache, ImageFeatures, Stream
from extract.cache_verify import verify
from extract.errors import CacheError
from extract.writer import CacheWriter
from tests.extract.cache_records import (
    META,
    STREAMS,
    assert_same,
    record,
    write_cache,
)

pytestmark = pytest.mark.usefixtures("quick_sync")
ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path) -> subprocess.Popen[str]:
    """The program that commits for ever, once it has opened the cache."""
    command = [sys.executable, "-m", "tests.extract.commit_forever", str(folder)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "open\n"
    return child


def kill(child: subprocess.Popen[str]) -> list[str]:
    """Kill -9; returns the ids that the program had reported as done."""
    child.send_signal(signal.SIGKILL)
    text, _ = child.communicate()
    assert child.returncode == -signal.SIGKILL
    return text.split()


def json_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_whole(folder: Path, reported: set[str]) -> set[str]:
    """All that was reported is there and as written; returns what is there."""
    cache = FeatureCache(folder)
    assert reported <= set(cache.ids)
    for found in cache:
        assert_same(found, record(found.image_id))
    assert verify(folder).problems == []
    return set(cache.ids)


def test_killed_again_and_again(tmp_path: Path) -> None:
    folder, reported = tmp_path / "features", set[str]()
    draw = random.Random(1)
    for _ in range(4):
        child = start(folder)
        assert child.stdout is not None
        for _ in range(draw.randrange(1, 6)):
            reported |= set(child.stdout.readline().split())
        reported |= set(kill(child))
        there = check_whole(folder, reported)
        assert len(there) <= len(reported) + 2  # the one commit that was under way
    with CacheWriter(folder, META, STREAMS) as writer:
        assert writer.done == check_whole(folder, reported)
        named = {line["shard"] for line in json_lines(folder / "journal-0.jsonl")}
        assert {p.name for p in folder.iterdir() if "shard" in p.name} == named


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_at_every_step_of_a_commit(tmp_path: Path) -> None:
    """A child dies right before or after its n-th sync or rename, for every n."""
    steps = 0
    for n in range(100):
        folder = write_cache(tmp_path / f"f{n}", ["a", "b"])
        child = os.fork()
        if child == 0:
            commit_and_die(folder, n)
        _, status = os.waitpid(child, 0)
        there = check_whole(folder, {"a", "b"})
        assert there in ({"a", "b"}, {"a", "b", "c", "d"})
        with CacheWriter(folder, META, STREAMS) as writer:
            writer.commit([record(i) for i in ("c", "d", "e") if i not in writer.done])
        assert check_whole(folder, set("abcde")) == set("abcde")
        assert not list(folder.glob(".*.tmp"))
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0 and there == {"a", "b", "c", "d"}
            break
        steps += 1
    assert steps >= 8


def commit_and_die(folder: Path, n: int) -> None:
    """Runs in a child: commit, and be killed around the n-th of its syncs and renames."""
    passed = 0

    def counted(call: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*args: object) -> None:
            nonlocal passed
            for action in (lambda: call(*args), lambda: None):
                if passed == n:
                    os.kill(os.getpid(), signal.SIGKILL)
                passed += 1
                action()

        return wrapped

    try:
        with CacheWriter(folder, META, STREAMS) as writer:
            os.fsync, os.replace = counted(os.fsync), counted(os.replace)
            writer.commit([record("c"), record("d")])
        os._exit(0)
    finally:
        os._exit(1)


def test_order_of_syncs_and_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut must not undo is synced before the next step says that it is there."""
    steps: list[str] = []
    replace = os.replace

    def noted(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        replace(source, target)

    def synced(handle: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")

    with CacheWriter(tmp_path / "features", META, STREAMS) as writer:
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", noted)
        writer.commit([record("a")])
        shard = ["sync .shard-0-00000.h5.0.tmp", "rename to shard-0-00000.h5", "sync features"]
        assert steps == [*shard, "sync journal-0.jsonl", "sync features"]  # a new journal's name
        steps.clear()
        writer.commit([record("b")])
        assert steps[-1] == "sync journal-0.jsonl" and len(steps) == 4


def test_second_writer_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    child = start(folder)
    with pytest.raises(CacheError, match=f"another process is writing there .process {child.pid} "):
        CacheWriter(folder, META, STREAMS).__enter__()
    reported = set(kill(child))
    with CacheWriter(folder, META, STREAMS) as writer:
        assert reported <= writer.done


def test_second_writer_in_the_same_process(tmp_path: Path) -> None:
    with CacheWriter(tmp_path / "f", META, STREAMS) as writer:
        with pytest.raises(CacheError, match=f"process {os.getpid()} on"):
            CacheWriter(tmp_path / "f", META, STREAMS).__enter__()
        writer.commit([record("a")])
    write_cache(tmp_path / "f", ["b"])


def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "features", ["a"], ["b"])
    with CacheWriter(folder, META, STREAMS) as writer:
        assert writer.done == {"a", "b"}
        writer.commit([])
        writer.commit([record("c")])
        assert writer.done == {"a", "b", "c"}
        for again in (["c"], ["a"], ["d", "d"]):
            with pytest.raises(CacheError, match="image '.' is (already in|twice)"):
                writer.commit([record(image) for image in again])
    assert check_whole(folder, set("abc")) == set("abc")


def test_cut_journal_is_mended(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "features", ["a"], ["b"])
    journal = folder / "journal-0.jsonl"
    os.truncate(journal, journal.stat().st_size - 1)
    assert (folder / "shard-0-00001.h5").exists()
    with CacheWriter(folder, META, STREAMS) as writer:
        assert writer.done == {"a"}
        assert not (folder / "shard-0-00001.h5").exists()
        writer.commit([record("b"), record("c")])
    assert check_whole(folder, set("abc")) == set("abc")


def test_removed_shard_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_cache(tmp_path / "features", ["a"], ["b"], ["c"])
    (folder / "shard-0-00001.h5").unlink()
    with CacheWriter(folder, META, STREAMS) as writer:
        assert writer.done == {"a", "c"}
        assert "making again: shard-0-00001.h5" in caplog.text
        writer.commit([record("b")])
    assert FeatureCache(folder).ids == ("a", "c", "b")
    check_whole(folder, set("abc"))


def test_other_settings_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_cache(tmp_path / "features", ["a"])
    other = {**META, "settings": {"size": 448, "order": ["r", "g", "b"]}, "boxes": {"sha256": "1"}}
    with pytest.raises(CacheError) as caught:
        CacheWriter(folder, other, {**STREAMS, "regions": Stream(7)}).__enter__()
    for part in (
        str(folder),
        "settings.size: 224 / 448",
        "boxes.sha256: absent / 1",
        "streams.regions.width: 6 / 7",
        "--out",
    ):
        assert part in str(caught.value)
    write_cache(folder, ["b"], meta={**META, "versions": {"torch": "2.15.0"}})
    assert "torch: 2.14.1 / 2.15.0" in caplog.text
    assert FeatureCache(folder).meta["versions"] == {"torch": "2.14.1"}


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(CacheError, match="is no feature cache but holds holiday.jpg"):
        CacheWriter(tmp_path, META, STREAMS).__enter__()
    assert (tmp_path / "holiday.jpg").read_bytes() == b"x"


def spoilt(**changes: object) -> ImageFeatures:
    """A good record with one part replaced."""
    features = record("bad")
    for key, value in changes.items():
        setattr(features, key, value)
    return features


ROWS = {"grids": np.ones((6, 8)), "regions": np.ones((2, 6))}
BOXES = {"regions": np.array([[0, 0, 5, 5], [1, 1, 9, 9]], dtype=np.float32)}
PLAIN = {"extras": {}, "boxes": BOXES}


def with_value(value: float) -> dict[str, np.ndarray]:
    rows = {name: part.copy() for name, part in ROWS.items()}
    rows["regions"][1, 3] = value
    return rows


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({**PLAIN, "streams": with_value(np.nan)}, "'regions': row 1, column 3 is nan"),
        ({**PLAIN, "streams": with_value(np.inf)}, "row 1, column 3 is inf"),
        ({**PLAIN, "streams": with_value(65520.0)}, "65520.0, which is not finite in float16"),
        ({**PLAIN, "streams": {"grids": ROWS["grids"]}}, "'regions': its rows are missing"),
        ({**PLAIN, "streams": {**ROWS, "regions": np.ones((2, 5))}}, r"\(2, 5\), wanted .* 6\)"),
        ({**PLAIN, "streams": {**ROWS, "regions": np.ones((0, 6))}}, r"\(0, 6\), wanted \(1 or"),
        ({**PLAIN, "streams": {**ROWS, "more": np.ones((2, 6))}}, "'more' is not one of"),
        ({**PLAIN, "streams": ROWS, "boxes": {"regions": np.ones((3, 4))}}, r"\(3, 4\), wanted"),
        ({**PLAIN, "streams": ROWS, "boxes": {"regions": BOXES["regions"] + 53}}, "box 1 is"),
        ({**PLAIN, "streams": ROWS, "boxes": {"regions": -BOXES["regions"]}}, "box 0 is"),
        ({**PLAIN, "streams": ROWS, "boxes": {"regions": BOXES["regions"] * np.nan}}, "nan"),
        ({**PLAIN, "streams": ROWS, "grid_shape": {"grids": (2, 2)}}, "2 x 2 cells has 6 rows"),
        ({"extras": {"grids": {"objects": np.ones(5)}}}, r"objects are float64 \(5,\), wanted"),
        ({"extras": {"grids": {"scores": np.full(6, np.nan)}}}, "scores holds values that are not"),
        ({"extras": {"grids": {"rows": np.ones(6)}}}, "no extra may be named 'rows'"),
        ({"width": 0}, "size is 0 x 60"),
        ({"image_id": ""}, "id is empty"),
        ({"file": "a\udc80.jpg"}, "not valid UTF-8"),
    ],
)
def test_bad_records_are_refused(tmp_path: Path, changes: dict, said: str) -> None:
    with CacheWriter(tmp_path / "f", META, STREAMS) as writer:
        bad = spoilt(**changes)
        with pytest.raises(CacheError, match=f"image '{bad.image_id}' .*{said}"):
            writer.check(bad)
        with pytest.raises(CacheError, match=said):
            writer.commit([record("good"), bad])
        assert writer.done == frozenset()
        writer.commit([record("good")])
    assert check_whole(tmp_path / "f", {"good"}) == {"good"}


def test_largest_float16_is_kept(tmp_path: Path) -> None:
    with CacheWriter(tmp_path / "f", META, STREAMS) as writer:
        writer.commit([spoilt(**PLAIN, streams=with_value(65519.0))])
    assert FeatureCache(tmp_path / "f").read("bad").streams["regions"][1, 3] == 65504


def test_images_of_a_shard_know_the_same_of_their_rows(tmp_path: Path) -> None:
    with CacheWriter(tmp_path / "f", META, STREAMS) as writer:
        bare = spoilt(extras={})
        with pytest.raises(
            CacheError, match="'bad': stream 'regions' has boxes .*'good' has .*obj"
        ):
            writer.commit([record("good"), bare])
        whole = spoilt(extras={"regions": {"objects": np.ones(1)}})
        with pytest.raises(CacheError, match="wanted the same"):
            writer.commit([whole, record("good")])
        assert not list((tmp_path / "f").glob("*.h5"))


def limited(size: int, call: Callable[[], object]) -> None:
    """Run with files limited to so many bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        call()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_full_while_writing_a_shard(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "features", ["a"])
    with CacheWriter(folder, META, STREAMS) as writer:
        many = [record(f"i{k}") for k in range(300)]
        for size in (100, 3_000, 20_000, 60_000):
            with pytest.raises(
                CacheError, match="shard-0-00001.h5: cannot be written .File too la"
            ):
                limited(size, lambda: writer.commit(many))
            assert writer.done == {"a"}
            assert [p.name for p in folder.glob("*shard*")] == ["shard-0-00000.h5"]
        writer.commit(many)
    assert len(check_whole(folder, {"a", "i299"})) == 301


def test_disk_full_while_writing_the_journal(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    names = [f"{k}" * 9000 for k in range(9)]
    with CacheWriter(folder, META, STREAMS) as writer:
        for name in names[:-1]:
            writer.commit([record(name)])
        size = (folder / "journal-0.jsonl").stat().st_size
        assert size > 2 * (folder / "shard-0-00000.h5").stat().st_size  # the journal fails, not it
        with pytest.raises(CacheError, match="cannot be written .File too large"):
            limited(size + 100, lambda: writer.commit([record(names[-1])]))
        assert (folder / "journal-0.jsonl").stat().st_size == size
        writer.commit([record(names[-1])])
    assert check_whole(folder, set(names)) == set(names)


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for path, reason in ((tmp_path / "file", "File exists"), (Path("/proc/none"), "No such file")):
        with pytest.raises(CacheError, match=f"{path}: cannot be written .{reason}"):
            CacheWriter(path, META, STREAMS).__enter__()


def test_disk_full_from_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    for size in (0, 100):  # not even the lock; the lock but not cache.json
        with pytest.raises(CacheError, match="features: cannot be written .File too large.; make"):
            limited(size, CacheWriter(folder, META, STREAMS).__enter__)
    write_cache(folder, ["a"])
    assert check_whole(folder, {"a"}) == {"a"}


def failures(folder: Path) -> list[dict[str, str]]:
    return json_lines(folder / "failures.jsonl")


def test_failures_stand_until_a_success(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    with CacheWriter(folder, META, STREAMS) as writer:
        writer.fail("a", "a.jpg", "truncated", "first")
        writer.fail("a", "a.jpg", "truncated", "second")
        writer.fail("b", "b.jpg", "no-image", "text")
        assert len(failures(folder)) == 3  # at once, should the process be killed
        writer.commit([record("b")])
    assert [(f["image_id"], f["detail"]) for f in failures(folder)] == [("a", "second")]
    assert list(FeatureCache(folder).failures()) == ["a"]
    write_cache(folder, ["c"])
    assert [f["image_id"] for f in failures(folder)] == ["a"]
    write_cache(folder, ["a"])
    assert failures(folder) == [] and FeatureCache(folder).failures() == {}


def test_failures_after_a_kill(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "features", ["a"])
    line = {"image_id": "b", "file": "b.jpg", "reason": "truncated", "detail": ""}
    text = json.dumps({**line, "image_id": "a"}) + "\n" + json.dumps(line) + "\n"
    (folder / "failures.jsonl").write_text(text + text[:30], encoding="utf-8")
    assert FeatureCache(folder).failures() == {"b": line}
    with CacheWriter(folder, META, STREAMS) as writer:
        writer.fail("c", "c.jpg", "truncated", "")
    assert [f["image_id"] for f in failures(folder)] == ["b", "c"]
    (folder / "failures.jsonl").write_text("7\n", encoding="utf-8")
    with pytest.raises(CacheError, match="failures.jsonl: line 1 is no failure"):
        FeatureCache(folder).failures()


def test_failures_stay_listed_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), CacheWriter(tmp_path / "f", META, STREAMS) as writer:
        writer.fail("a", "a.jpg", "truncated", "")
        raise KeyboardInterrupt
    assert [f["image_id"] for f in failures(tmp_path / "f")] == ["a"]
