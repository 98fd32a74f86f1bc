"""METEOR with its paraphrase table cut to the captions at hand, against METEOR as it comes.

    python benchmarks/meteor.py [--images 1000] [--repeats 3]

Captions are MS COCO 2014 validation captions (CC BY 4.0) out of the installed pycocoevalcap: the
first caption of each image against the others. Every run is a program of its own; the best of
the repeats counts. `first` cuts the table, `again` finds it in the cache; `whole` is the official
program with the whole table and the options of pycocoevalcap's wrapper. Prints one line of JSON:
wall and CPU seconds of start and scoring together, peak memory of the largest process, and the
ratios of the whole table to the cut one. Exit code 1 when the numbers differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from evaluate.java import find_java, wheel_file
from evaluate.java import run as run_java
from evaluate.meteor import Meteor
from evaluate.tokenizer import ptb_tokenize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", choices=("whole", "cut"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(one(options.one, options.images))
        return
    found = measure(options.images, options.repeats)
    print(json.dumps(found))
    sys.exit(0 if found["equal"] else 1)


def measure(images: int, repeats: int) -> dict[str, Any]:
    """All runs, and the best of each kind."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for name, mode in (("first", "cut"), ("again", "cut"), ("whole", "whole")):
                runs[name].append(run([sys.argv[0], "--one", mode, "--images", str(images)], cache))
    best = {name: min(found, key=lambda r: r["wall_s"]) for name, found in runs.items()}
    answers = {r.pop("answer") for found in runs.values() for r in found}
    ratios = {
        f"whole_to_{name}": {k: round(best["whole"][k] / best[name][k], 2) for k in best[name]}
        for name in ("first", "again")
    }
    return {
        "benchmark": "meteor",
        "images": images,
        "java": find_java().version_text,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "equal": len(answers) == 1,
        **best,
        **ratios,
    }


def run(arguments: list[str], cache: str) -> dict[str, Any]:
    """One program: wall and CPU seconds, peak memory in MB, and what it printed."""
    started = time.monotonic()
    popen = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "XDG_CACHE_HOME": cache},
    )
    assert popen.stdout is not None
    with popen.stdout:
        answer = popen.stdout.read().decode()
    _, status, used = os.wait4(popen.pid, 0)  # counts the Java process too
    popen.returncode = os.waitstatus_to_exitcode(status)
    if popen.returncode:
        raise SystemExit(f"a run ended with {popen.returncode}")
    return {
        "wall_s": round(time.monotonic() - started, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_mb": used.ru_maxrss // 1024,
        "answer": answer,
    }


def one(mode: str, images: int) -> str:
    """Score with one kind of table; a digest of all numbers."""
    captions = coco(images)
    if mode == "whole":
        stats = as_it_comes(captions)
    else:
        with Meteor(time_limit=900) as meteor:
            stats = meteor.stats(
                {i: texts[1:] for i, texts in captions.items()},
                {i: texts[0] for i, texts in captions.items()},
            )
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def as_it_comes(captions: dict[int, list[str]]) -> list[tuple[float, ...]]:
    """METEOR as pycocoevalcap starts and asks it."""
    lines = [" ||| ".join(["SCORE", *texts[1:], texts[0]]) for texts in captions.values()]
    command = [str(find_java().path), "-jar", "-Xmx2G", str(wheel_file("meteor/meteor-1.5.jar"))]
    command += ["-", "-", "-stdio", "-l", "en", "-norm"]
    answer = run_java("METEOR", command, "\n".join(lines).encode(), 900).decode()
    return [tuple(map(float, line.split())) for line in answer.splitlines()]


def coco(images: int) -> dict[int, list[str]]:
    """Tokenised captions of the first images."""
    with zipfile.ZipFile(Path(wheel_file("spice/spice-1.0.jar"))) as jar:
        annotations = json.loads(jar.read("coco/annotations/captions_val2014.json"))["annotations"]
    captions: dict[int, list[str]] = defaultdict(list)
    for annotation in annotations:
        captions[annotation["image_id"]].append(annotation["caption"])
    chosen = sorted(captions)[:images]
    tokens = iter(ptb_tokenize([text for i in chosen for text in captions[i]]))
    return {i: [next(tokens) for _ in captions[i]] for i in chosen}


if __name__ == "__main__":
    main()
