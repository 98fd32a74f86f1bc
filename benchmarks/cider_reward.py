"""CIDEr-D rewards of a training step: this project against the public implementations.

    python benchmarks/cider_reward.py [--images 50] [--beams 5] [--repeats 7] [--ruotianluo FOLDER]

A step scores `images` x `beams` candidate captions against a table of 3,000 images. Captions are
MS COCO 2014 validation captions (CC BY 4.0) out of the installed pycocoevalcap; candidates are
captions of other images with a few words of the image's own. `first` prepares the references on
the way, as a first epoch does; `later` finds them prepared. `tokenised` starts from raw candidates.
The others' `java` is Meshed-Memory Transformer's way: references and candidates of every step go
through the official tokenizer, a Java program started twice. pycocoevalcap has no fixed table: it
counts the step's own references. `--ruotianluo` is a checkout of github.com/ruotianluo/cider,
which the scores are then also checked against; it needs `six`. Prints one line of JSON: seconds of
wall and CPU time, the best of the repeats, and how many times longer the others take.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evaluate.cider import CiderReward, DocumentFrequency
from evaluate.java import find_java, wheel_file
from evaluate.tokenizer import ptb_tokenize

TABLE_IMAGES = 3000


def coco_references(images: int) -> dict[str, list[str]]:
    """Tokenised captions of the first images of COCO val2014."""
    with zipfile.ZipFile(wheel_file("spice/spice-1.0.jar")) as jar:
        stored = json.loads(jar.read("coco/annotations/captions_val2014.json"))
    captions: dict[str, list[str]] = defaultdict(list)
    for annotation in stored["annotations"]:
        captions[str(annotation["image_id"])].append(annotation["caption"])
    chosen = sorted(captions)[:images]
    return {image: ptb_tokenize(captions[image]) for image in chosen}


def candidates(references: dict[str, list[str]], images: list[str], beams: int) -> list[list[str]]:
    """Word lists, `beams` for each image: another image's caption with a part of an own one."""
    chance = random.Random(0)
    every = [text.split() for texts in references.values() for text in texts]
    made = []
    for image in images:
        for beam in range(beams):
            own = chance.choice(references[image]).split()
            cut = chance.randint(1, len(own))
            made.append((own[:cut] + chance.choice(every)[cut:])[: 20 - beam])
    return made


def cpu_seconds() -> float:
    """CPU seconds of this process and of programs that it started and that have ended."""
    return sum(os.times()[:4])


def best(step: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Least wall and CPU seconds of a few runs."""
    times = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), cpu_seconds()
        step()
        times.append((time.perf_counter() - wall, cpu_seconds() - cpu))
    return {"wall": min(t[0] for t in times), "cpu": min(t[1] for t in times)}


def pycocoevalcap_step(pairs: list[tuple[list[str], str]]) -> Callable[[], Any]:
    from pycocoevalcap.cider.cider import Cider

    gts = {place: texts for place, (texts, _) in enumerate(pairs)}
    res = {place: [caption] for place, (_, caption) in enumerate(pairs)}
    return lambda: Cider().compute_score(gts, res)


def java_step(pairs: list[tuple[list[str], str]], table: DocumentFrequency) -> Callable[[], Any]:
    """Tokenise references and candidates of the step in Java, then score."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    gts = {k: [{"caption": text} for text in texts] for k, (texts, _) in enumerate(pairs)}
    res = {k: [{"caption": caption}] for k, (_, caption) in enumerate(pairs)}

    def step() -> np.ndarray:
        references, candidates = PTBTokenizer().tokenize(gts), PTBTokenizer().tokenize(res)
        words = [candidates[k][0].split() for k in res]
        return CiderReward(references, table).reward(list(res), words)

    return step


def ruotianluo_step(
    folder: Path, table: DocumentFrequency, pairs: list[tuple[list[str], str]]
) -> Callable[[], Any]:
    """Its scorer reads the table from `data/NAME.p` under the working directory."""
    sys.path.insert(0, str(folder))
    from pyciderevalcap.ciderD.ciderD import CiderD

    counts = defaultdict(float, {tuple(n.split(" ")): float(c) for n, c in table.counts.items()})
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "data").mkdir()
        with (Path(name) / "data" / "table.p").open("wb") as file:
            pickle.dump({"document_frequency": counts, "ref_len": table.documents}, file)
        os.chdir(name)
        try:
            scorer = CiderD(df="table")
        finally:
            os.chdir(here)
    gts = {place: texts for place, (texts, _) in enumerate(pairs)}
    res = [{"image_id": k, "caption": [caption]} for k, (_, caption) in enumerate(pairs)]
    return lambda: scorer.compute_score(gts, res)[1]


def tokenised(
    reward: CiderReward, ids: list[str], pairs: list[tuple[list[str], str]]
) -> np.ndarray:
    """Rewards of raw candidates: tokenised here, references prepared before."""
    return reward.reward(ids, [text.split() for text in ptb_tokenize([c for _, c in pairs])])


def find_java_on_path() -> None:
    """pycocoevalcap starts the `java` on the PATH."""
    os.environ["PATH"] = f"{find_java().path.parent}{os.pathsep}{os.environ.get('PATH', '')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--ruotianluo", type=Path)
    options = parser.parse_args()
    references = coco_references(TABLE_IMAGES)
    table = DocumentFrequency.build(references)
    images = list(references)[: options.images]
    captions = candidates(references, images, options.beams)
    ids = [image for image in images for _ in range(options.beams)]
    pairs = [(references[i], " ".join(words)) for i, words in zip(ids, captions, strict=True)]

    prepared = CiderReward(references, table)
    scores = prepared.reward(ids, captions)
    ours = {
        "first": best(
            lambda: CiderReward(references, table).reward(ids, captions), options.repeats
        ),
        "later": best(lambda: prepared.reward(ids, captions), options.repeats),
        "tokenised": best(lambda: tokenised(prepared, ids, pairs), options.repeats),
    }
    find_java_on_path()
    java = java_step(pairs, table)
    others = {
        "pycocoevalcap": best(pycocoevalcap_step(pairs), options.repeats),
        "java": best(java, options.repeats),
    }
    result: dict[str, Any] = {
        "captions": len(captions),
        "mean": float(scores.mean()),
        "seconds": {**ours, **others},
        "java_times_longer_than_tokenised": {
            clock: others["java"][clock] / ours["tokenised"][clock] for clock in ("wall", "cpu")
        },
        "java_largest_difference": float(
            np.abs(java() - tokenised(prepared, ids, pairs)).max()  # (captions,) each
        ),
    }
    if options.ruotianluo:
        step = ruotianluo_step(options.ruotianluo, table, pairs)
        others["ruotianluo"] = result["seconds"]["ruotianluo"] = best(step, options.repeats)
        result["largest_difference"] = float(np.abs(scores - step()).max())
    result["times_longer_than_later"] = {
        name: {clock: seconds[clock] / ours["later"][clock] for clock in ("wall", "cpu")}
        for name, seconds in others.items()
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
