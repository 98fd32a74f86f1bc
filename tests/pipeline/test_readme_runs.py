"""The commands of the README and of the pages, run as they stand on two dozen small photos.

Only sizes are added: fewer epochs, a narrow model, metrics that need no Java.
"""

from __future__ import annotations

import glob
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]

SMALLER = {
    "train": "-o xe.epochs=1 -o xe.warmup=2 -o scst.epochs=1 -o model.width=16 -o model.heads=2"
    " -o model.feed_forward=16 -o vocabulary.min_count=1 -o decoding.max_words=6",
    "eval": "--metrics bleu,rouge,cider --resamples 20",
    "demo": "--images 20",
    "scenes": "--images 20",
    "reproduce": "--images 20 --overlay tiny --row transformer --seed 1",
}
# what a page leaves to the reader
NAMES = {
    "PHOTOS": "photos",
    "RECIPE": "flickr8k",
    "CACHE": "features",
    "FILE": "captions.json",
    "RUN": "run",
    "A": "run",
    "B": "own-run",
    "photo.jpg": "photos/photo00.jpg",
}
COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (40, 60, 200)}


def in_blocks(page: str) -> list[str]:
    """The `pipeline` lines of a page's code blocks, continued lines joined."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split("  #")[0] for line in re.findall(r"^ {4}(pipeline .*)$", text, re.MULTILINE)]


def in_tables(page: str) -> list[str]:
    """The `pipeline` commands that stand alone in the last cell of a row."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^\|.*\| `(pipeline [^`]+)` \|$", text, re.MULTILINE)


def photographs(folder: Path) -> None:
    """24 plain photos, captions with splits, boxes, and somebody's results for the test split."""
    images, boxes, results = [], {}, []
    for place in ("photos", "flickr8k/images", "holiday"):
        (folder / place).mkdir(parents=True)
    for number in range(24):
        colour, name = list(COLOURS)[number % 3], f"photo{number:02}.jpg"
        noise = np.random.default_rng(number).normal(0, 20, (60, 80, 3))  # (H, W, 3)
        pixels = np.clip(noise + COLOURS[colour], 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / name)
        shutil.copy(folder / "photos" / name, folder / "flickr8k" / "images")
        split = "test" if number < 3 else "val" if number < 6 else "train"
        texts = [f"A {colour} wall.", f"A wall is {colour}."]
        sentences = [{"raw": text, "tokens": text[:-1].lower().split()} for text in texts]
        images.append({"filename": name, "split": split, "sentences": sentences})
        boxes[name[:-4]] = [[5, 5, 40, 50], [30, 10, 75, 55]]
        if split == "test":
            results.append({"image_id": name[:-4], "caption": f"a {colour} wall"})
            shutil.copy(folder / "photos" / name, folder / "holiday" / f"beach{number}.jpg")
    captions = json.dumps({"images": images})
    (folder / "captions.json").write_text(captions)
    (folder / "flickr8k" / "dataset_flickr8k.json").write_text(captions)
    (folder / "boxes.json").write_text(json.dumps(boxes))
    (folder / "results.json").write_text(json.dumps(results))


def words_of(line: str) -> list[str]:
    """A command line as the shell would give it, smaller."""
    words = []
    for word in shlex.split(line)[1:]:
        word = NAMES.get(word, word)
        words += sorted(glob.glob(word)) if "*" in word else [word]
    return words


def smaller(words: list[str]) -> list[str]:
    if words[0] == "train" and ("--recipe" not in words or "--show" in words):
        return words
    return [*words, *SMALLER.get(words[0], "").split()]


def run(lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Type the lines one after the other; each must end well. `> FILE` keeps what it prints."""
    for line in lines:
        line, _, kept = line.partition(" > ")
        with pytest.raises(SystemExit) as ended:
            main(smaller(words_of(line)))
        shown = capsys.readouterr()
        assert ended.value.code == 0, f"{line}\n{shown.out}\n{shown.err}"
        if kept:
            Path(kept.strip()).write_text(shown.out, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    photographs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_readme(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = in_tables("README.md")
    assert len(in_blocks("README.md")) == 3 and len(tables) >= 10
    run([*in_blocks("README.md"), *tables], capsys)
    assert (folder / "run" / "report.html").is_file()
    assert (folder / "run" / "results" / "test-shuffled.json").is_file()


def test_flickr8k(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = in_blocks("docs/flickr8k.md")
    assert len(lines) == 10
    run(lines, capsys)
    assert (folder / "flickr8k" / "run" / "report.html").is_file()
    assert (folder / "flickr8k" / "better" / "scores" / "test.json").is_file()


def test_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = in_blocks("docs/training.md")
    foreign = [line for line in lines if " m2" in line]  # a published checkpoint, not at hand
    lines = [line for line in lines if line not in foreign]
    assert len(lines) >= 6 and len(foreign) == 2
    run([in_blocks("README.md")[0], *lines], capsys)
    assert (folder / "own.yaml").is_file()


def test_cat(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = in_blocks("docs/models.md")
    start = next(place for place, line in enumerate(lines) if "--recipe cat/cat" in line)
    run([lines[start - 1], f"{lines[start]} --overlay tiny"], capsys)
    assert (folder / "run" / "best" / "model.safetensors").is_file()
