"""SPICE on several Javas: the same numbers for every image, and those stored with the tests.

    python benchmarks/compare_spice.py --golden DIR --java PATH --java PATH --java PATH
        [--sets 5,200] [--images N] [--work DIR] [--store]

DIR holds tokenised captions as `metrics_5.json.gz`; `--sets` names some of these files by what
stands behind `metrics_`. Every Java (a program, or its home) parses all captions by itself and
keeps the parses under `--work`, so that the same command goes on where it was stopped. `--images`
takes the first images of each set. Images with a caption of more than 400 characters are left
out: such a caption takes minutes and gigabytes. `--store` writes the values that the tests compare
with, where all Javas agree. Prints one line of JSON; exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evaluate.java import find_java
from evaluate.spice import KINDS, Spice, SpiceScores, summary

STORED = Path(__file__).parents[1] / "tests" / "evaluate" / "data" / "spice_golden.json"
WHAT = (
    "SPICE 1.0 with CoreNLP 3.6.0 on the tokenised captions of golden sets; tp, fp and fn of every"
    " kind; null: an image with a caption of more than 400 characters, left out"
)
LONGEST = 400  # characters
HEAP_MB = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--java", action="append", required=True)
    parser.add_argument("--sets", default="*")
    parser.add_argument("--images", type=int)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    if options.store and (options.images or options.sets != "*"):
        parser.error("--store takes all images of all sets")
    names = [f"metrics_{name.strip()}.json.gz" for name in options.sets.split(",")]
    paths = sorted({path for name in names for path in options.golden.glob(name)})
    if not paths:
        parser.error(f"no {' and no '.join(names)} in {options.golden}")
    with tempfile.TemporaryDirectory(prefix="spice-") as temporary:
        work = options.work or Path(temporary)
        found, values = compare(paths, options.java, options.images, work)
    print(json.dumps(found))
    if options.store and found["same_on_all"]:
        content = {"what": WHAT, "kinds": ["All", *KINDS], "sets": values}
        STORED.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    same = found["same_on_all"] and (options.store or found["same_as_stored"])
    sys.exit(0 if same else 1)


def compare(
    paths: list[Path], javas: list[str], images: int | None, work: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was found, and the values of each set on the first Java."""
    sets = {path.name: json.loads(gzip.decompress(path.read_bytes()))["images"] for path in paths}
    kept = {name: short(found)[:images] for name, found in sets.items()}
    seconds, scores = {}, []
    for java in javas:
        os.environ["PIPELINE_JAVA"] = java
        version = find_java().version_text
        start = time.monotonic()
        scores.append(score(sets, kept, work / f"java-{version}"))
        seconds[version] = round(time.monotonic() - start, 1)
    values = {path.name: to_store(path, sets[path.name], scores[0]) for path in paths}
    stored = json.loads(STORED.read_text())["sets"]
    found = {
        "benchmark": "compare_spice",
        "images": {name: len(places) for name, places in kept.items()},
        "seconds": seconds,
        "same_on_all": all(one == scores[0] for one in scores),
        "same_as_stored": all(
            same(values[name], stored.get(name), places, whole=images is None)
            for name, places in kept.items()
        ),
    }
    return found, values


def same(found: Any, stored: Any, places: list[int], *, whole: bool) -> bool:
    """Whether a set's values are the stored ones: all of them, or those of some images."""
    if whole or stored is None:
        return bool(found == stored)
    return all(found[key][k] == stored[key][k] for key in ("ids", "f", "counts") for k in places)


def short(images: list[dict[str, Any]]) -> list[int]:
    """Places of the images whose captions parse in a moment."""
    return [
        k
        for k, image in enumerate(images)
        if all(len(text) <= LONGEST for text in (image["cand_tok"], *image["refs_tok"]))
    ]


def score(
    sets: dict[str, list[dict[str, Any]]], kept: dict[str, list[int]], cache: Path
) -> dict[tuple[str, int], dict[str, Any]]:
    """The program's whole answer for every image of all sets."""
    images = {(name, k): sets[name][k] for name, places in kept.items() for k in places}
    scores: SpiceScores = Spice(heap=HEAP_MB, cache=cache).score(
        {place: image["refs_tok"] for place, image in images.items()},
        {place: image["cand_tok"] for place, image in images.items()},
    )
    return dict(zip(images, scores.details, strict=True))


def to_store(
    path: Path,
    images: list[dict[str, Any]],
    details: dict[tuple[str, int], dict[str, Any]],
) -> dict[str, Any]:
    """Values of a set by the place and id of each image; no captions."""
    found = [details.get((path.name, k)) for k in range(len(images))]
    means = summary([one for one in found if one])
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "corpus": means.corpus,
        "sub": means.sub,
        "ids": [image["id"] for image in images],
        "f": [one and one["All"]["f"] for one in found],
        "counts": [
            one and [[int(one[kind][c]) for c in ("tp", "fp", "fn")] for kind in ("All", *KINDS)]
            for one in found
        ],
    }


if __name__ == "__main__":
    main()
