"""Scoring 5,000 COCO images, everything but SPICE: this project against pycocoevalcap.

    python benchmarks/scoring.py [--images 5000] [--repeats 1] [--files DIR]

Both sides read the same two JSON files and run as programs of their own on the same Java, in
turn; the best of the repeats counts. Captions are MS COCO 2014 validation captions (CC BY 4.0) out
of the installed pycocoevalcap: one caption of each image is the candidate, the others are its
references. Prints one line of JSON. For each side: wall seconds, CPU seconds of all
processes, and the peak of their memory together (proportional set size, sampled). `cold` starts
with an empty cache folder (METEOR's table is cut anew), `warm` finds the table of the run before.
`--files` only writes the two files, `results.json` and `references.json`. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from evaluate.java import find_java, wheel_file

INTERVAL = 0.05  # seconds between two looks at memory
METRICS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=1, help="rounds of all three runs")
    parser.add_argument("--files", type=Path, help="write the two files there, and no more")
    parser.add_argument("--official", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.official:
        print(json.dumps(official_scores(*options.official)))
        return
    if options.files:
        options.files.mkdir(parents=True, exist_ok=True)
        write_captions(options.files, options.images)
        return
    with tempfile.TemporaryDirectory(prefix="scoring-") as name:
        print(json.dumps(measure(Path(name), options.images, options.repeats)))


def measure(folder: Path, images: int, repeats: int) -> dict[str, Any]:
    """Run all in turn, `repeats` times, and compare the best of each."""
    results, references = write_captions(folder, images)
    java = find_java()
    environment = {
        **os.environ,
        "PATH": f"{java.path.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PIPELINE_JAVA": str(java.path),
    }
    ours = [sys.executable, "-m", "pipeline", "eval", "--json", "--resamples", "0"]
    ours += ["--metrics", "bleu,meteor,rouge,cider"]
    ours += ["--results", str(results), "--references", str(references)]
    official = [sys.executable, __file__, "--official", str(results), str(references)]
    load = os.getloadavg()[0]
    runs: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": [], "pycocoevalcap": []}
    for number in range(repeats):
        environment["XDG_CACHE_HOME"] = str(folder / f"cache-{number}")
        for name, found in runs.items():
            found.append(run(official if name == "pycocoevalcap" else ours, environment))
    best = {name: min(found, key=lambda r: r["wall_s"]) for name, found in runs.items()}
    own = best["cold"].pop("said")["results"][0]["corpus"]
    best["warm"].pop("said")
    wanted = best["pycocoevalcap"].pop("said")
    return {
        "benchmark": "scoring",
        "images": images,
        "metrics": list(METRICS),
        "java": java.version_text,
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": round(load, 2),
        **best,
        **{
            f"pycocoevalcap_to_{name}": {
                key: round(value / best[name][key], 2)
                for key, value in best["pycocoevalcap"].items()
            }
            for name in ("cold", "warm")
        },
        "largest_difference": max(abs(own[m] - wanted[m]) for m in METRICS),
    }


def write_captions(folder: Path, images: int) -> tuple[Path, Path]:
    """Results and references of random images, as COCO JSON files."""
    with zipfile.ZipFile(wheel_file("spice/spice-1.0.jar")) as jar:
        content = json.loads(jar.read("coco/annotations/captions_val2014.json"))
    captions = defaultdict(list)
    for annotation in content["annotations"]:
        captions[annotation["image_id"]].append(annotation["caption"])
    chosen = random.Random(0).sample(sorted(captions), images)
    results = [{"image_id": image, "caption": captions[image][0]} for image in chosen]
    pairs = [(image, text) for image in chosen for text in captions[image][1:]]
    references = {
        "info": {},
        "licenses": [],
        "images": [{"id": image} for image in chosen],
        "annotations": [
            {"id": number, "image_id": image, "caption": text}
            for number, (image, text) in enumerate(pairs)
        ],
    }
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "references.json").write_text(json.dumps(references))
    return folder / "results.json", folder / "references.json"


def official_scores(results: Path, references: Path) -> dict[str, float]:
    """What `COCOEvalCap.evaluate` does, less SPICE; its talk goes to stderr."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    from pycocotools.coco import COCO

    stdout, sys.stdout = sys.stdout, sys.stderr
    coco = COCO(str(references))
    captions = coco.loadRes(str(results))
    images = coco.getImgIds()
    tokenizer = PTBTokenizer()
    wanted = tokenizer.tokenize({image: coco.imgToAnns[image] for image in images})
    found = tokenizer.tokenize({image: captions.imgToAnns[image] for image in images})
    scores: dict[str, float] = {}
    for scorer, names in (
        (Bleu(4), METRICS[:4]),
        (Meteor(), ("METEOR",)),
        (Rouge(), ("ROUGE_L",)),
        (Cider(), ("CIDEr",)),
    ):
        corpus, _ = scorer.compute_score(wanted, found)
        values = corpus if isinstance(corpus, list) else [corpus]
        scores.update(zip(names, map(float, values), strict=True))
    sys.stdout = stdout
    return scores


def run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run a program to its end: wall, CPU and memory of it and all its children."""
    before = os.times()
    start = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.DEVNULL)
        peak = [0]
        watch = threading.Thread(target=watch_memory, args=(process, peak))
        watch.start()
        code = process.wait()
        wall = time.monotonic() - start
        watch.join()
        said.seek(0)
        text = said.read().decode()
    after = os.times()
    if code != 0:
        raise SystemExit(f"{' '.join(command)} ended with {code}; run it to see why")
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return {
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "peak_mib": round(peak[0] / 1024),
        "said": json.loads(text.splitlines()[-1]),
    }


def watch_memory(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(memory_kb(pid) for pid in family(process.pid)))
        time.sleep(INTERVAL)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(one for child in children for one in family(child))]


def memory_kb(pid: int) -> int:
    """Proportional set size: shared pages are counted once over the processes that share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
