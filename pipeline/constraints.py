"""Words that captions are to hold: chosen from detections, kept as JSON, made into machines.

The choice follows nocaps' baseline (Agrawal et al., nocaps, ICCV 2019): no blacklisted classes, of
two that overlap not the one that the other is a kind of, the three likeliest of the rest. The file
is `{"image id": [["dog", "dogs"], ["cat", "cats"]]}`: constraints of an image, each a list of
alternatives, each a word or a phrase.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caption.constrained import MOST, Machine
from caption.vocabulary import SPECIALS, Vocabulary
from extract.counts import counted
from pipeline.entries import read_json, shown
from pipeline.errors import PipelineError
from pipeline.open_images import ClassHierarchy, Detection, overlap
from pipeline.results import canonical_id, named
from pipeline.word_forms import forms_of

IOU = 0.85  # from here on two boxes are about the same thing: nocaps' setting
_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How constraints are chosen from detections."""

    hierarchy: ClassHierarchy | None = None
    blacklist: Collection[str] = ()
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    phrases: bool = False  # names of several words too; M2's experiment has none
    most: int = MOST  # constraints of an image
    iou: float = IOU
    min_score: float = 0.0  # detections must have more


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The constraints of all images, and what was left out on the way."""

    images: dict[str, list[list[str]]]
    detections: int
    weak: int  # of a score too low
    blacklisted: int
    suppressed: int  # another one overlaps that is a finer kind
    wordless: Counter[str]  # class -> detections; no single word names it
    strangers: Counter[str]  # class -> detections; the hierarchy does not know it

    def lines(self) -> list[str]:
        """What was done, for people."""
        counts = Counter(len(constraints) for constraints in self.images.values())
        spread = ", ".join(f"{counts[n]:,} have {n}" for n in sorted(counts, reverse=True))
        lines = [
            f"{counted(len(self.images), 'image')} with {counted(self.detections, 'detection')};"
            " constraints:"
            f" {spread}",
            f"left out: {self.blacklisted:,} blacklisted, {self.suppressed:,} with a finer kind in"
            f" the same place, {self.weak:,} of too low a score",
        ]
        if self.wordless:
            lines.append(f"left out: {_counted(self.wordless)} whose name is no single word")
        if self.strangers:
            lines.append(f"kept, but not in the hierarchy: {_counted(self.strangers)}")
        return lines


def choose(detections: Mapping[str, Sequence[Detection]], rules: Rules) -> Choice:
    """Constraints for every image: those of its likeliest classes, the likeliest first.

    A class gives one constraint however often it was seen. Raises PipelineError when the hierarchy
    knows none of the classes.
    """
    strangers: Counter[str] = Counter()
    if rules.hierarchy is not None:
        known = rules.hierarchy.above
        strangers.update(d.name for found in detections.values() for d in found)
        classes = list(strangers)
        strangers = Counter({name: n for name, n in strangers.items() if name not in known})
        if classes and len(strangers) == len(classes):
            raise PipelineError(
                f"{rules.hierarchy.path}: knows none of the {len(classes)} classes detected"
                f" ({', '.join(classes[:_NAMED])}); where one has labels as /m/0bt9lr and the other"
                " names, give --names class-descriptions-boxable.csv"
            )
    images: dict[str, list[list[str]]] = {}
    weak = blacklisted = suppressed = 0
    wordless: Counter[str] = Counter()
    for image, found in detections.items():
        strong = [d for d in found if d.score > rules.min_score]
        allowed = [d for d in strong if d.name not in rules.blacklist]
        finest = [d for d in allowed if not _is_suppressed(d, allowed, rules)]
        weak += len(found) - len(strong)
        blacklisted += len(strong) - len(allowed)
        suppressed += len(allowed) - len(finest)
        finest.sort(key=lambda d: -d.score)  # stable: equal ones in the file's order
        constraints: dict[str, list[str]] = {}
        for one in finest:
            words = alternatives(one.name, rules)
            if words:
                constraints.setdefault(one.name, words)
            else:
                wordless[one.name] += 1
        images[image] = list(constraints.values())[: rules.most]
    return Choice(
        images=images,
        detections=sum(map(len, detections.values())),
        weak=weak,
        blacklisted=blacklisted,
        suppressed=suppressed,
        wordless=wordless,
        strangers=strangers,
    )


def alternatives(name: str, rules: Rules) -> list[str]:
    """The words of a class, and its phrases where the rules want them."""
    return [form for form in forms_of(name, rules.forms) if rules.phrases or " " not in form]


def _is_suppressed(one: Detection, others: Sequence[Detection], rules: Rules) -> bool:
    """Whether a detection of a finer class lies in the same place."""
    if rules.hierarchy is None:
        return False
    above = rules.hierarchy.above
    return any(
        one.name in above.get(other.name, ()) and overlap(one.box, other.box) >= rules.iou
        for other in others
    )


def to_json(choice: Choice) -> str:
    """The text of a constraints file, an image a line."""
    lines = ",\n".join(
        f"{json.dumps(image)}: {json.dumps(constraints, ensure_ascii=False)}"
        for image, constraints in choice.images.items()
    )
    return f"{{{lines}}}\n"


@dataclass(frozen=True, kw_only=True)
class ConstraintFile:
    """The constraints of a file, by canonical image id."""

    path: Path
    sha256: str
    images: Mapping[str, Sequence[Sequence[str]]] = field(repr=False)


def read_constraints(path: Path) -> ConstraintFile:
    """Read and check a constraints file. Raises PipelineError naming file and image."""
    content = read_json(path)
    wanted = 'wanted {"image id": [["dog", "dogs"], ...]}'
    if not isinstance(content, dict) or not content:
        raise PipelineError(f"{path}: holds {shown(content)}, {wanted}")
    images: dict[str, list[list[str]]] = {}
    for image, constraints in content.items():
        where = f"{path}: image {image!r}"
        if not isinstance(constraints, list):
            raise PipelineError(f"{where}: holds {shown(constraints)}, {wanted}")
        if len(constraints) > MOST:
            raise PipelineError(f"{where}: {len(constraints)} constraints, wanted {MOST} at most")
        for number, constraint in enumerate(constraints, 1):
            words = constraint if isinstance(constraint, list) else []
            if not words or not all(isinstance(word, str) and word.strip() for word in words):
                raise PipelineError(
                    f"{where}: constraint {number} is {shown(constraint)}, {wanted}"
                )
        key = canonical_id(image)
        if key in images:
            raise PipelineError(f"{where}: this image stands there twice (as {key!r})")
        images[key] = constraints
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return ConstraintFile(path=path, sha256=sha256, images=images)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A file's constraints in a vocabulary's words, and what that vocabulary lacks."""

    file: ConstraintFile
    machines: dict[str, Machine]  # of every image; of one without constraints the plain one
    missing: int  # images that the file does not have
    unknown: Counter[str]  # alternatives that hold a word outside the vocabulary -> images
    dropped: Counter[str]  # constraints of which no alternative is left, by the first one

    def record(self, satisfy: int, satisfied: Mapping[str, int]) -> dict[str, Any]:
        """What was asked and what came of it, as plain values for the scores."""
        asked = {i: m for i, m in self.machines.items() if m.constraints}
        held = [i for i, m in asked.items() if satisfied[i] >= min(satisfy, m.constraints)]
        return {
            "file": str(self.file.path),
            "sha256": self.file.sha256,
            "satisfy": satisfy,
            "images": len(self.machines),
            "images_with_constraints": len(asked),
            "images_that_hold_them": len(held),
            "images_not_in_the_file": self.missing,
            "words_not_in_the_vocabulary": dict(self.unknown.most_common()),
            "constraints_left_out": dict(self.dropped.most_common()),
        }

    def remarks(self) -> list[str]:
        """What was left out, for people."""
        lines = []
        if self.missing:
            lines.append(
                f"{self.missing:,} of {len(self.machines):,} images are not in {self.file.path}:"
                " decoded without constraints"
            )
        if self.unknown:
            lines.append(f"words that the vocabulary lacks: {_counted(self.unknown)}")
        if self.dropped:
            lines.append(
                f"constraints left out, since it lacks all their words: {_counted(self.dropped)}"
            )
        return lines


def asked_of(
    file: ConstraintFile, ids: Mapping[str, Sequence[str]], vocabulary: Vocabulary
) -> Asked:
    """The machines of images; `ids` maps each to the ids it may have in the file.

    Raises PipelineError when the file has none of the images.
    """
    unknown: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    machines, missing = {}, []
    for image, aliases in ids.items():
        key = next((a for a in map(canonical_id, aliases) if a in file.images), None)
        if key is None:
            missing.append(image)
        constraints = []
        for constraint in file.images[key] if key is not None else []:
            known = []
            for text in constraint:
                words = text.split()
                if all(word in vocabulary.ids and word not in SPECIALS for word in words):
                    known.append([vocabulary.ids[word] for word in words])
                else:
                    unknown[text] += 1
            if known:
                constraints.append(known)
            else:
                dropped[constraint[0]] += 1
        machines[image] = Machine.of(constraints)
    if len(missing) == len(machines):
        raise PipelineError(
            f"{file.path}: has none of the {named(missing)}; its ids are like"
            f" {', '.join(list(file.images)[:3])}"
        )
    return Asked(
        file=file, machines=machines, missing=len(missing), unknown=unknown, dropped=dropped
    )


def _counted(counts: Counter[str]) -> str:
    shown_ = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(_NAMED))
    rest = f", and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
    return f"{counts.total():,} ({shown_}{rest})"
