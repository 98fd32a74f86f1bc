"""`pipeline constraints`: words that captions are to hold, from detections."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from caption.constrained import MOST
from caption.vector_file import read_vectors
from pipeline.constraints import IOU, Rules, alternatives, choose, to_json
from pipeline.files import write_text
from pipeline.open_images import (
    read_class_names,
    read_classes,
    read_detections,
    read_hierarchy,
)
from pipeline.word_forms import read_forms

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NAMED = 10


@click.group()
def command() -> None:
    """Words that captions are to hold, for `pipeline eval --constraints`."""


def _shared(decorated: Any) -> Any:
    """The options that both commands have."""
    for option in (
        click.option("--phrases", is_flag=True, help="Names of several words too (M2: none)."),
        click.option("--forms", type=_FILE, help="Lines class<TAB>word,word over the plural rule."),
        click.option(
            "--names", type=_FILE, help="CSV of label,name, where labels are as /m/0bt9lr."
        ),
        click.option("--blacklist", type=_FILE, help="Classes that are no constraint, one a line."),
    ):
        decorated = option(decorated)
    return decorated


@command.command()
@click.argument("detections", type=_FILE)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Constraints file.")
@click.option("--hierarchy", type=_FILE, help="Open Images' class hierarchy (JSON).")
@_shared
@click.option("--boxes", type=click.Choice(["xyxy", "xywh"]), help="Form of the boxes: xyxy.")
@click.option("--most", type=click.IntRange(1, MOST), default=MOST, show_default=True)
@click.option("--iou", type=click.FloatRange(0, 1), default=IOU, show_default=True)
@click.option("--min-score", type=float, default=0.0, show_default=True, help="Scores are above.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def make(detections: Path, out: Path, as_json: bool, **options: Any) -> None:
    """Choose up to three classes of each image's DETECTIONS as constraints.

    \b
    pipeline constraints make detections.json --hierarchy bbox_labels_600_hierarchy.json \\
        --names class-descriptions-boxable.csv --blacklist blacklist.txt --out constraints.json

    Blacklisted classes are left out; so is a class where one that is a kind of it lies in the same
    place; the likeliest of the rest are taken.
    """
    names, rules = _rules(options)
    boxes = options["boxes"]
    found = read_detections(detections, names, sides=None if boxes is None else boxes == "xywh")
    choice = choose(found, rules)
    write_text(out, to_json(choice))
    if as_json:
        kept = {n: sum(len(c) == n for c in choice.images.values()) for n in range(MOST + 1)}
        summary = {
            "out": str(out),
            "images": len(choice.images),
            "images_by_constraints": kept,
            "detections": choice.detections,
            "blacklisted": choice.blacklisted,
            "suppressed": choice.suppressed,
            "too_low_a_score": choice.weak,
            "without_a_single_word": dict(choice.wordless.most_common()),
            "not_in_the_hierarchy": dict(choice.strangers.most_common()),
        }
        click.echo(json.dumps(summary, ensure_ascii=False))
        return
    for line in choice.lines():
        click.echo(line)
    click.echo(f"next: pipeline eval --run RUN --constraints {shlex.quote(str(out))}")


@command.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="List of words.")
@click.option("--hierarchy", required=True, type=_FILE, help="Open Images' class hierarchy (JSON).")
@_shared
@click.option("--vectors", type=_FILE, help="Take only words that have a vector here.")
@click.option("--width", type=click.IntRange(min=1), default=300, show_default=True)
def words(out: Path, vectors: Path | None, width: int, **options: Any) -> None:
    """List the words of all classes, to be known to a run (`-o vocabulary.extra=FILE`).

    \b
    pipeline constraints words --hierarchy bbox_labels_600_hierarchy.json \\
        --names class-descriptions-boxable.csv --vectors glove.42B.300d.txt --out class-words.txt
    """
    _, rules = _rules(options)
    classes = () if rules.hierarchy is None else rules.hierarchy.above
    unnamed = [name for name in classes if name.startswith("/")]
    wanted = [name for name in classes if name not in rules.blacklist and name not in unnamed]
    forms = [form for name in wanted for form in alternatives(name, rules)]
    listed = list(dict.fromkeys(word for form in forms for word in form.split()))
    lacking: list[str] = []
    if vectors is not None:
        found = read_vectors(vectors, listed, width).vectors
        lacking = [word for word in listed if word not in found]
        listed = [word for word in listed if word in found]
    write_text(out, "".join(f"{word}\n" for word in listed))
    click.echo(f"{out}: {len(listed):,} words of {len(wanted):,} classes")
    for what, left in (("without a vector", lacking), ("labels without a name", unnamed)):
        if left:
            rest = ", ..." if len(left) > _NAMED else ""
            click.echo(f"left out, {what}: {len(left):,} ({', '.join(left[:_NAMED])}{rest})")


def _rules(options: dict[str, Any]) -> tuple[dict[str, str], Rules]:
    """The names of labels, and the rules that the options make."""
    names = read_class_names(options["names"]) if options["names"] else {}
    hierarchy = read_hierarchy(options["hierarchy"], names) if options["hierarchy"] else None
    listed = read_classes(options["blacklist"]) if options["blacklist"] else {}
    if hierarchy is not None and options["blacklist"]:
        hierarchy.check(options["blacklist"], listed)
    rules = Rules(
        hierarchy=hierarchy,
        blacklist=frozenset(listed.values()),
        forms=read_forms(options["forms"]) if options["forms"] else {},
        phrases=options["phrases"],
        most=options.get("most", MOST),
        iou=options.get("iou", IOU),
        min_score=options.get("min_score", 0.0),
    )
    return names, rules
