"""500 real photographs: killed three times with -9, by one process and by two, against none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from extract.cache import FeatureCache
from extract.cache_merge import merge
from extract.cache_verify import verify
from extract.share import Share

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
COUNT = 500
# extracts the list argv[1] into argv[2] in shards of 32, as `pipeline extract` does
SCRIPT = """
import sys
from pathlib import Path
from extract.extractor import Extractor
from extract.presets import get
from extract.run import extract
from extract.share import Share
from extract.sources import find_sources
extractor = Extractor("imagenet-grid", get("imagenet-grid"), "cpu", None)
sources = find_sources([Path(sys.argv[1])])
extract(sources, extractor, Path(sys.argv[2]), shard_images=32, share=Share.of_environment())
"""


@pytest.fixture(scope="module")
def listing(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    photos = sorted((shared_dir / "data" / "flickr8k_mini" / "images").glob("*.jpg"))[:COUNT]
    assert len(photos) == COUNT
    path = tmp_path_factory.mktemp("killed") / "photos.txt"
    path.write_text("\n".join(map(str, photos)))
    return path


@pytest.fixture(scope="module")
def uninterrupted(listing: Path) -> bytes:
    out = listing.with_name("whole")
    assert start(listing, out).wait() == 0
    return merged(out)


def start(listing: Path, out: Path, share: Share | None = None) -> subprocess.Popen[bytes]:
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    if share is not None:
        env |= {"RANK": str(share.rank), "WORLD_SIZE": str(share.world)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, listing, out], cwd=ROOT, env=env)


def merged(out: Path) -> bytes:
    assert verify(out).sound
    merge([out], out.with_suffix(".h5"))
    return out.with_suffix(".h5").read_bytes()


def done(out: Path, rank: int = 0) -> int:
    journal = out / f"journal-{rank}.jsonl"
    return len(journal.read_bytes().splitlines()) if journal.exists() else 0


def test_killed_three_times(listing: Path, uninterrupted: bytes) -> None:
    out = listing.with_name("killed")
    for kill in range(3):
        before = done(out)
        child = start(listing, out)
        while done(out) < before + 2 + kill:  # some shards on, in the midst of the next
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert len(FeatureCache(out)) < COUNT
    assert start(listing, out).wait() == 0
    assert merged(out) == uninterrupted


def test_one_of_two_processes_killed(listing: Path, uninterrupted: bytes) -> None:
    out = listing.with_name("two")
    first, second = (start(listing, out, Share(rank, 2)) for rank in range(2))
    while done(out, 1) < 2:
        assert second.poll() is None
        time.sleep(0.05)
    second.send_signal(signal.SIGKILL)
    assert (second.wait(), first.wait()) == (-signal.SIGKILL, 0)
    assert len(FeatureCache(out)) < COUNT
    again = [start(listing, out, Share(rank, 2)) for rank in range(2)]
    assert [child.wait() for child in again] == [0, 0]
    assert merged(out) == uninterrupted


def test_torchrun_with_a_killed_process(listing: Path, uninterrupted: bytes) -> None:
    """The command as documented; torchrun ends the others, the same command goes on."""
    out = listing.with_name("torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["-m", "pipeline", "extract", str(listing)]
    command += ["--preset", "imagenet-grid", "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(command, cwd=ROOT, env=env)
    while not (out / ".lock-1").is_file() or not (out / ".lock-1").read_text():
        assert run.poll() is None
        time.sleep(0.05)
    time.sleep(3)
    os.kill(int((out / ".lock-1").read_text().split()[0]), signal.SIGKILL)
    assert run.wait() == 1
    assert len(FeatureCache(out)) < COUNT
    assert subprocess.run(command, cwd=ROOT, env=env).returncode == 0
    assert merged(out) == uninterrupted
