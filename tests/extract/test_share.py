"""Several processes, one cache: shares, locks, and what a dead process leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from extract.cache import FeatureCache
from extract.cache_merge import merge
from extract.cache_verify import verify
from extract.errors import CacheError, ExtractError
from extract.share import Share
from extract.writer import CacheWriter
from tests.extract.cache_records import META, STREAMS, record, write_cache
from tests.extract.commit_share import IDS

pytestmark = pytest.mark.usefixtures("quick_sync")
ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, rank: int, world: int, pause: float = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.extract.commit_share", str(folder), str(pause)],
        cwd=ROOT,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)},
        stdout=subprocess.PIPE,
        text=True,
    )


def merged(folder: Path, out: Path) -> bytes:
    merge([folder], out)
    return out.read_bytes()


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_each_image_is_in_one_share(world: int) -> None:
    shares = [Share(rank, world) for rank in range(world)]
    images = [f"i{number}" for number in range(60)]
    for image in [*images, "举个例子", "\udcff"]:
        assert sum(share.has(image) for share in shares) == 1
    for rank in range(12):
        assert sum(share.mends(rank) for share in shares) == 1
    assert all(any(share.has(image) for image in images) for share in shares)


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, Share(0, 1)),
        ({"RANK": "", "WORLD_SIZE": ""}, Share(0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Share(1, 4)),
        ({"RANK": "4", "WORLD_SIZE": "4"}, None),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, None),
        ({"RANK": "1"}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "one", "WORLD_SIZE": "2"}, None),
    ],
)
def test_share_of_the_environment(environment: dict[str, str], share: Share | None) -> None:
    if share is not None:
        assert Share.of_environment(environment) == share
        return
    with pytest.raises(ExtractError, match="RANK='.*', WORLD_SIZE='.*', wanted 0 <= RANK"):
        Share.of_environment(environment)


def test_a_killed_process_is_finished_by_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    patient, victim = start(folder, 0, 2), start(folder, 1, 2, pause=60)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "open\n"
    reported = set(victim.stdout.readline().split())
    victim.kill()
    victim.communicate()
    assert patient.wait(60) == 0
    patient.communicate()
    there = set(FeatureCache(folder).ids)
    assert reported < there and len(there) < len(IDS)
    assert {image for image in IDS if Share(0, 2).has(image)} < there
    again = [start(folder, rank, 2) for rank in range(2)]
    said = [child.communicate(timeout=60)[0] for child in again]
    assert [child.returncode for child in again] == [0, 0]
    assert said[0] == "open\n"  # its share was done
    assert verify(folder, dict.fromkeys(IDS)).sound and len(FeatureCache(folder)) == len(IDS)
    one = write_cache(tmp_path / "one", IDS)
    assert merged(folder, tmp_path / "two.h5") == merged(one, tmp_path / "one.h5")


def test_a_run_of_other_size_finishes_and_tidies(tmp_path: Path) -> None:
    """Ranks 0 to 2 left things; a run of two processes, then of one, goes on."""
    folder = tmp_path / "features"
    for rank in range(3):
        with CacheWriter(folder, META, STREAMS, Share(rank, 3)) as writer:
            writer.commit([record(f"a{rank}")])
            writer.commit([record(f"b{rank}")])
            writer.fail(f"bad{rank}", f"bad{rank}.jpg", "truncated", "3 bytes")
    os.truncate(folder / "journal-1.jsonl", (folder / "journal-1.jsonl").stat().st_size - 1)
    (folder / "shard-2-00000.h5").unlink()
    (folder / ".shard-2-00002.h5.2.tmp").write_bytes(b"x")
    left = {"a0", "b0", "a1", "b2"}
    with CacheWriter(folder, META, STREAMS, Share(0, 2)) as first:
        assert first.done == left
        assert (folder / "shard-1-00001.h5").exists()  # for the other one to tidy
        with CacheWriter(folder, META, STREAMS, Share(1, 2)) as second:
            assert second.done == left
            assert not (folder / "shard-1-00001.h5").exists()
            first.commit([record("a2")])
            second.commit([record("b1"), record("bad1")])
    assert sorted(p.name for p in folder.glob("failures*")) == [
        "failures-1.jsonl",
        "failures.jsonl",
    ]
    assert not list(folder.glob(".*.tmp"))
    assert sorted(FeatureCache(folder).failures()) == ["bad0", "bad2"]
    with CacheWriter(folder, META, STREAMS) as last:
        last.commit([record("bad2")])
    assert verify(folder).sound
    assert sorted(FeatureCache(folder).ids) == ["a0", "a1", "a2", "b0", "b1", "b2", "bad1", "bad2"]
    (kept,) = (folder / "failures.jsonl").read_text().splitlines()
    assert json.loads(kept)["image_id"] == "bad0"
    assert not (folder / "failures-1.jsonl").exists()


def test_runs_of_different_sizes_keep_out_of_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    with CacheWriter(folder, META, STREAMS, Share(1, 2)):
        with pytest.raises(CacheError, match="a run of 2 processes is writing .* this one is of 1"):
            CacheWriter(folder, META, STREAMS).__enter__()
        with pytest.raises(CacheError, match=f"another process .*process {os.getpid()} on"):
            CacheWriter(folder, META, STREAMS, Share(1, 2)).__enter__()
        with CacheWriter(folder, META, STREAMS, Share(0, 2)) as other:
            other.commit([record("a")])
    write_cache(folder, ["b"])
    assert FeatureCache(folder).ids == ("a", "b")
