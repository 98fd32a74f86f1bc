"""The vocabulary of the Meshed-Memory release, counted again from all captions of MS COCO 2014.

    python benchmarks/m2_vocabulary.py karpathy_test_images.txt [--released vocab.pkl]

The captions (CC BY 4.0) come out of the installed pycocoevalcap. The file names the images of
Karpathy's test split, whose captions are left out: one per line, its COCO number at the line's end.
The release knows five captions of each image; the sixths and sevenths, 322 of them, are left out.
Prints one line of JSON: captions, words, entries of the vocabulary at 5 and more occurrences, out
of vocabulary share, and with `--released` how the entries differ from the release's.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from caption.importers.meshed_memory import read_vocabulary
from caption.spacy_tokenizer import spacy_tokenize
from caption.vocabulary import Vocabulary
from evaluate.java import wheel_file

CAPTIONS = 5  # of each image


def coco_captions(without: set[int]) -> list[str]:
    captions: dict[int, list[str]] = {}
    with zipfile.ZipFile(wheel_file("spice/spice-1.0.jar")) as jar:
        for split in ("train", "val"):
            stored = json.loads(jar.read(f"coco/annotations/captions_{split}2014.json"))
            for annotation in stored["annotations"]:
                if annotation["image_id"] not in without:
                    captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    return [text for texts in captions.values() for text in texts[:CAPTIONS]]


def image_numbers(path: Path) -> set[int]:
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [re.findall(r"\d+", line) for line in lines if line.strip()]
    return {int(numbers[-1]) for numbers in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("test_images", type=Path)
    parser.add_argument("--released", type=Path)
    options = parser.parse_args()
    captions = coco_captions(image_numbers(options.test_images))
    words = list(spacy_tokenize(captions))
    vocabulary = Vocabulary.build(words, min_count=5)
    counts = Counter(word for caption in words for word in caption)
    unknown = sum(count for word, count in counts.items() if word not in vocabulary.ids)
    result: dict[str, Any] = {
        "captions": len(captions),
        "words": counts.total(),
        "different_words": len(counts),
        "entries": len(vocabulary),
        "unknown_share": round(unknown / counts.total(), 5),
    }
    if options.released is not None:
        released = read_vocabulary(options.released)
        result["released_entries"] = len(released)
        result["only_here"] = sorted(set(vocabulary.words) - set(released.words))
        result["only_released"] = sorted(set(released.words) - set(vocabulary.words))
        same = zip(vocabulary.words, released.words, strict=False)
        result["same_place"] = sum(a == b for a, b in same)
    print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    main()
