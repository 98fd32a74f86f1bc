"""Peak memory of an extraction over 100 images and over 1,000: it must not grow with their number.

    python benchmarks/extract_memory.py PHOTOS [--few 100] [--many 1000] [--preset imagenet-grid]

PHOTOS is a folder; its images are linked under new names until there are enough. Each extraction
runs in a process of its own, with two decoding threads, and is followed by a merge in another.
Prints one line of JSON: for both numbers the peak of resident memory in MiB, wall and CPU seconds
and images a second of the extraction, the peak of the merge, and `ratio`, the larger extraction's
peak over the smaller's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--preset", default="imagenet-grid")
    parser.add_argument("-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--weights", type=Path, help="of a preset that needs such")
    options = parser.parse_args()
    facts: dict[str, Any] = {"benchmark": "extract_memory", "preset": options.preset}
    with tempfile.TemporaryDirectory(prefix="extract-memory-") as name:
        for key, count in (("few", options.few), ("many", options.many)):
            facts[key] = measure(Path(name) / key, options, count)
    facts["ratio"] = round(facts["many"]["extract_mib"] / facts["few"]["extract_mib"], 3)
    print(json.dumps(facts))


def measure(folder: Path, options: argparse.Namespace, count: int) -> dict[str, Any]:
    """Extract and merge `count` images in a new folder."""
    photos = sorted(p.resolve() for p in options.photos.iterdir() if p.suffix.lower() == ".jpg")
    folder.mkdir()
    listing = folder / "photos.csv"
    lines = [f'"{photos[k % len(photos)]}",i{k}' for k in range(count)]
    listing.write_text("path,id\n" + "\n".join(lines))
    words = [str(listing), "--preset", options.preset, "--out", str(folder / "cache")]
    words += ["--workers", "2", "--device", "cpu"]
    words += [word for each in options.overrides for word in ("-o", each)]
    if options.weights is not None:
        words += ["--weights", str(options.weights)]
    extracted = run("extract", *words)
    merged = run("cache", "merge", str(folder / "cache"), "--out", str(folder / "cache.h5"))
    return {
        "images": count,
        "extract_mib": extracted["mib"],
        "wall_s": extracted["wall_s"],
        "cpu_s": extracted["cpu_s"],
        "images_per_s": round(count / extracted["wall_s"], 2),
        "merge_mib": merged["mib"],
    }


def run(*words: str) -> dict[str, float]:
    """A command of the program in a child: its peak memory and seconds."""
    command = [sys.executable, "-m", "pipeline", *words]
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    before = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # of ru_maxrss to MiB
    return {
        "mib": round(usage.ru_maxrss / unit, 1),
        "wall_s": round(time.perf_counter() - before, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
    }


if __name__ == "__main__":
    main()
