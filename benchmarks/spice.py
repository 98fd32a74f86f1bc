"""SPICE the first time, and again from its cache of parsed captions.

    python benchmarks/spice.py [--images 200] [--repeats 1] [--full DIR]

Captions as in `benchmarks/meteor.py`; needs CoreNLP (`pipeline setup spice`). `first` parses
everything, `again` finds it parsed, `new` has other candidates for the same references. With
`--full DIR` (a folder with the uncut CoreNLP jars) `plain` parses everything with all models and
a heap of 8 GB, as the program's own wrapper does; by itself the program cannot write its answer on
Java 15 or later. Prints one line of JSON: wall and CPU seconds, peak memory and the ratios of the
rest to `first`, and how many images first, again and plain do not agree on: SPICE itself follows
Java's random hashes on about one image of 5,000. Exit code 1 where these are more than 0.1 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from evaluate.java import find_java
from evaluate.spice import Spice

sys.path.insert(0, str(Path(__file__).parent))
from meteor import coco, run  # noqa: E402

HEAP_MB, PLAIN_HEAP_MB = 2000, 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--full", type=Path, help="a folder with the uncut jars")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--jars", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(one(options.one, options.images, options.jars))
        return
    found = measure(options)
    print(json.dumps(found))
    sys.exit(1 if found["differing"] > options.images / 1000 else 0)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All runs, and the best of each kind."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    call = [sys.argv[0], "--images", str(options.images), "--one"]
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for name, candidate in (("first", "0"), ("again", "0"), ("new", "1")):
                runs[name].append(run([*call, candidate], cache))
        if options.full:
            with tempfile.TemporaryDirectory() as cache:
                runs["plain"].append(run([*call, "0", "--jars", str(options.full)], cache))
    best = {name: min(found, key=lambda r: r["wall_s"]) for name, found in runs.items()}
    answers = [r["answer"].split() for name, all_ in runs.items() if name != "new" for r in all_]
    differing = sum(len(set(each)) > 1 for each in zip(*answers, strict=True))
    for found in best.values():
        del found["answer"]
    ratios = {
        f"{name}_to_first": {k: round(v / best["first"][k], 3) for k, v in found.items()}
        for name, found in best.items()
        if name != "first"
    }
    return {
        "benchmark": "spice",
        "images": options.images,
        "java": find_java().version_text,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "differing": differing,
        **best,
        **ratios,
    }


def one(candidate: int, images: int, jars: Path | None) -> str:
    """Score with one caption of each image as candidate; a digest of each image's numbers."""
    captions = coco(images)
    # The first two captions are candidates in turn, so the references are the same.
    scores = Spice(corenlp=jars, heap=PLAIN_HEAP_MB if jars else HEAP_MB).score(
        {i: texts[2:] for i, texts in captions.items()},
        {i: texts[candidate] for i, texts in captions.items()},
    )
    return " ".join(
        hashlib.sha256(json.dumps(detail).encode()).hexdigest() for detail in scores.details
    )


if __name__ == "__main__":
    main()
