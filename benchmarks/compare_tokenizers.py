"""The tokenizer in Python against the official one in Java, caption by caption.

    python benchmarks/compare_tokenizers.py [--shuffle SEED] [--lines FILE] [--made-up N --seed S]

Without `--lines` or `--made-up` the captions are all 616,767 of MS COCO 2014 (training and
validation, CC BY 4.0), which lie inside the installed pycocoevalcap. `--shuffle` puts them in
another order: the last full stop of a caption can depend on the next caption. `--made-up`
strings words, punctuation, numbers, quotation marks and Unicode together at random.
Prints one line of JSON: captions, mismatches and the first of them, and seconds of each side.
Exit code 1 when there is a mismatch.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import zipfile
from pathlib import Path

from evaluate.java import wheel_file
from evaluate.java_tokenizer import java_tokenize
from evaluate.tokenizer import ptb_tokenize

SHOWN = 10  # mismatches in the output

WORDS = (
    "a the dog man's isn't U.S. No. no. Mr. mr. st. St. Ave. etc. p.m. e.g. Ph.D. o'clock O'Brien "
    "and/or tri-colored x-ray AT&T R&B M&M's C++ c# cannot gonna wanna 'tis Co. Ltd. Jan. Wed. "
    "fig. 'em 'til rock'n'roll y'all I'd've dogs' photo.jpg www.example.com http://x.org/a?b=c "
    "user@example.com @user #tag <unk> </s> <br/> caf\u00e9 na\u00efve \u00c9COLE \u4e1c\u4eac "
    "\u0414\u043e\u043c \ufb01sh A. B. c. J.R.R. the The He IT In wait... ok!! hello!world dog.The "
    "1 2 1/2 3.5mm 1,000th 12:30 16:9 5'10\" '80s '05 1980s 555-1234 (555) 123-4567 12/25/2014 "
    "$5 5% \u00a35 5\u20ac 5\u00a2 \u00bd 2\u00bd #1 -5 +1 .5 20-year-old 1st 100th &amp; &lt; "
    "&quot;hi&quot; it&apos;s &eacute; :) :-( ;D =P ^_^ (x_x) -LRB- 'quoted' \u2018so\u2019 "
    "\u201cso\u201d ``so'' \u00abso\u00bb a\u00adb \u2026 \u2014 -- --- ----- _ "
    "__ / \\ | * ** ? ?! "
    ". , ; : ! - ' \" ` ( ) [ ] { } < > & $ # @ ~ ^ = +"
).split()
GLUE = ["", "", "", ".", ",", "'", "-", "'s", "n't", "/", "&", ":", '"', "\u2019", "\u00a0", "\t"]
UNICODE = "".join(
    map(chr, [*range(0xA0, 0x600, 3), *range(0x2000, 0x2100), *range(0x3000, 0x3100)])
)


def coco_captions() -> list[str]:
    """The captions of MS COCO 2014, training before validation, in the order of their files."""
    captions = []
    with zipfile.ZipFile(wheel_file("spice/spice-1.0.jar")) as jar:
        for split in ("train", "val"):
            stored = json.loads(jar.read(f"coco/annotations/captions_{split}2014.json"))
            captions += [annotation["caption"] for annotation in stored["annotations"]]
    return captions


def made_up(count: int, seed: int) -> list[str]:
    """Random captions of 1 to 8 pieces, some glued together, some with odd characters."""
    chance = random.Random(seed)
    captions = []
    for _ in range(count):
        caption = ""
        for _ in range(chance.randint(1, 8)):
            caption += chance.choice(WORDS)
            if chance.random() < 0.1:
                caption += chance.choice(UNICODE)
            if chance.random() < 0.2:
                caption = caption.swapcase() if chance.random() < 0.5 else caption.upper()
            caption += chance.choice(GLUE) if chance.random() < 0.3 else " "
        captions.append(caption if chance.random() < 0.5 else caption.strip())
    return captions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=Path, help="a text file, one caption per line")
    parser.add_argument("--made-up", type=int, help="so many random captions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shuffle", type=int, help="shuffle the captions with this seed")
    options = parser.parse_args()
    if options.lines:
        captions = options.lines.read_text("utf-8").split("\n")
    elif options.made_up:
        captions = made_up(options.made_up, options.seed)
    else:
        captions = coco_captions()
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(captions)
    start = time.perf_counter()
    ours = ptb_tokenize(captions)
    middle = time.perf_counter()
    official = java_tokenize(captions)
    end = time.perf_counter()
    wrong = [i for i, pair in enumerate(zip(ours, official, strict=True)) if pair[0] != pair[1]]
    print(
        json.dumps(
            {
                "captions": len(captions),
                "mismatches": len(wrong),
                "first": [
                    {"caption": captions[i], "python": ours[i], "java": official[i]}
                    for i in wrong[:SHOWN]
                ],
                "seconds": {"python": round(middle - start, 2), "java": round(end - middle, 2)},
            }
        )
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
