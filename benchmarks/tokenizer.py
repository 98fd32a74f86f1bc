"""Speed of the tokenizer in Python beside the official one in Java.

    python benchmarks/tokenizer.py [--repeats 5]

Captions are those of MS COCO val2014 (CC BY 4.0) out of the installed pycocoevalcap: 250 of them,
as in a training step, and all 202,654. Python starts each repeat with an empty memory of pieces;
`import` is the time that importing the tokenizer adds to a new program. Java is a process of its
own per call. Prints one line of JSON: seconds of wall and CPU time (children included), the best
of the repeats, tokens per second, and how many times longer Java takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from typing import Any

from evaluate import tokenizer
from evaluate.java import wheel_file
from evaluate.java_tokenizer import java_tokenize


def cpu() -> float:
    """CPU seconds of this process and its children."""
    usages = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def best(step: Callable[[], Any], repeats: int) -> dict[str, float]:
    times = []
    for _ in range(repeats):
        wall, before = time.perf_counter(), cpu()
        step()
        times.append((time.perf_counter() - wall, cpu() - before))
    return {"wall": min(t[0] for t in times), "cpu": min(t[1] for t in times)}


def python_tokenize(captions: list[str]) -> list[str]:
    tokenizer._pieces.clear()
    return tokenizer.ptb_tokenize(captions)


def new_program(statement: str) -> Callable[[], Any]:
    return lambda: subprocess.run([sys.executable, "-c", statement], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with zipfile.ZipFile(wheel_file("spice/spice-1.0.jar")) as jar:
        stored = json.loads(jar.read("coco/annotations/captions_val2014.json"))
    everything = [annotation["caption"] for annotation in stored["annotations"]]
    bare = best(new_program("import re, json, importlib.resources, bisect, array"), repeats)
    imported = best(new_program("import evaluate.tokenizer"), repeats)
    result: dict[str, Any] = {"import": {c: imported[c] - bare[c] for c in ("wall", "cpu")}}
    for captions in (everything[:250], everything):
        ours = best(lambda batch=captions: python_tokenize(batch), repeats)  # type: ignore[misc]
        java = best(lambda batch=captions: java_tokenize(batch), repeats)  # type: ignore[misc]
        tokens = sum(len(line.split()) for line in python_tokenize(captions))
        result[f"{len(captions)} captions"] = {
            "python": {**ours, "tokens_per_wall_second": round(tokens / ours["wall"])},
            "java": {**java, "tokens_per_wall_second": round(tokens / java["wall"])},
            "java_takes_times": {c: round(java[c] / ours[c], 2) for c in ("wall", "cpu")},
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
