"""Files about the classes of Open Images: detections, hierarchy, names, a list of classes.

Classes go by their names in lower case. The published hierarchy has labels such as `/m/0bt9lr` in
their place; a file of names (`class-descriptions-boxable.csv`) translates them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.nearest import hint
from pipeline.entries import read_json, shown
from pipeline.errors import PipelineError, WrongUsage

Box = tuple[float, float, float, float]  # x1 y1 x2 y2, in any unit

_WANTED = (
    'wanted {"image id": [{"class": "Dog", "score": 0.9, "box": [x1, y1, x2, y2]}, ...]} or COCO\'s'
    " {categories, annotations}"
)


@dataclass(frozen=True, kw_only=True)
class Detection:
    """One detected object."""

    name: str  # of the class, in lower case
    score: float
    box: Box


def read_detections(
    path: Path, names: Mapping[str, str], *, sides: bool | None = None
) -> dict[str, list[Detection]]:
    """Image id -> what was detected, in the file's order.

    `{"id": [{"class", "score", "box"}, ...]}`, entries also as `[class, score, box]`, or COCO's
    form with categories and annotations. Boxes are corners x1 y1 x2 y2, with `sides` x y width
    height; COCO's form must be told which, since both are about. `names` translates labels.
    Raises PipelineError naming file, image and place.
    """
    content = read_json(path, _WANTED)
    if not isinstance(content, dict):
        raise PipelineError(f"{path}: holds {shown(content)}, {_WANTED}")
    if isinstance(content.get("annotations"), list):
        if sides is None:
            raise WrongUsage(
                f"{path} has COCO's form, whose boxes are found as x y width height and as corners:"
                " say which by --boxes xywh or --boxes xyxy"
            )
        found = _of_coco(path, content)
    else:
        found = _of_mapping(path, content)
    detections: dict[str, list[Detection]] = {}
    for image, where, name, score, box in found:
        if image not in detections:
            detections[image] = []
        if where:
            one = _detection(f"{path}: {where}", name, score, box, bool(sides))
            label = names.get(one.name, one.name)
            detections[image].append(Detection(name=label, score=one.score, box=one.box))
    return detections


_Raw = tuple[str, str, Any, Any, Any]  # image, place ("": no detection), class, score, box


def _of_mapping(path: Path, content: Mapping[str, Any]) -> Iterator[_Raw]:
    for image, entries in content.items():
        if not isinstance(entries, list):
            raise PipelineError(f"{path}: image {image!r}: holds {shown(entries)}, {_WANTED}")
        yield image, "", None, None, None
        for number, entry in enumerate(entries, 1):
            where = f"image {image!r}, detection {number}"
            if isinstance(entry, list) and len(entry) == 3:
                entry = dict(zip(("class", "score", "box"), entry, strict=True))
            missing = [
                k
                for k in ("class", "score", "box")
                if not isinstance(entry, dict) or k not in entry
            ]
            if missing:
                raise PipelineError(
                    f"{path}: {where}: no {missing[0]} in {shown(entry)}, {_WANTED}"
                )
            yield image, where, entry["class"], entry["score"], entry["box"]


def _of_coco(path: Path, content: Mapping[str, Any]) -> Iterator[_Raw]:
    classes = {}
    for number, entry in enumerate(_entries(path, content, "categories")):
        if "id" not in entry or not isinstance(entry.get("name"), str):
            raise PipelineError(f"{path}: categories[{number}]: wanted an id and a name")
        classes[entry["id"]] = entry["name"]
    for entry in _entries(path, content, "images"):
        if "id" in entry:
            yield str(entry["id"]), "", None, None, None
    for number, entry in enumerate(_entries(path, content, "annotations")):
        where = f"annotations[{number}]"
        missing = [k for k in ("image_id", "category_id", "score", "bbox") if k not in entry]
        if missing:
            raise PipelineError(f"{path}: {where}: no key {missing[0]!r}, wanted a detection's")
        category = entry["category_id"]
        if not isinstance(category, int | str) or category not in classes:
            raise PipelineError(
                f"{path}: {where}: category_id is {shown(category)}, which `categories` lacks"
            )
        yield str(entry["image_id"]), where, classes[category], entry["score"], entry["bbox"]


def _entries(path: Path, content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = content.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PipelineError(f"{path}: {key} is {shown(entries)}, wanted a list of objects")
    return entries


def _detection(where: str, name: Any, score: Any, box: Any, sides: bool) -> Detection:
    if not isinstance(name, str) or not name.strip():
        raise PipelineError(f"{where}: class is {shown(name)}, wanted a name")
    if not _is_number(score):
        raise PipelineError(f"{where}: score is {shown(score)}, wanted a number")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise PipelineError(f"{where}: box is {shown(box)}, wanted four numbers")
    x1, y1, x2, y2 = (float(value) for value in box)
    if sides:
        x2, y2 = x1 + x2, y1 + y2
    if x2 < x1 or y2 < y1:
        wanted = "a width and height of 0 or more" if sides else "x1 <= x2 and y1 <= y2"
        raise PipelineError(f"{where}: box is {shown(box)}, wanted {wanted}")
    return Detection(name=_lower(name), score=float(score), box=(x1, y1, x2, y2))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def overlap(a: Box, b: Box) -> float:
    """Intersection over union of two boxes; 0 where both have no area."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    shared = width * height
    union = _area(a) + _area(b) - shared
    return shared / union if union > 0 else 0.0


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


@dataclass(frozen=True, kw_only=True)
class ClassHierarchy:
    """Which classes are kinds of which."""

    path: Path
    above: Mapping[str, frozenset[str]]  # class -> all classes that it is a kind of

    def check(self, path: Path, classes: Mapping[int, str]) -> None:
        """Raise PipelineError naming file and line of a class that the hierarchy lacks."""
        for line, name in classes.items():
            if name not in self.above:
                raise PipelineError(
                    f"{path}: line {line}: {name!r} is no class of"
                    f" {self.path}{_near(name, self.above)}"
                )


def _near(name: str, known: Mapping[str, Any]) -> str:
    """The nearest class as a question; the hierarchy's hundreds are not listed."""
    near, _, listed = hint(name, known).partition(" There are ")
    return near if listed else ""


def read_hierarchy(path: Path, names: Mapping[str, str]) -> ClassHierarchy:
    """Open Images' hierarchy: nested `{"LabelName", "Subcategory": [...], "Part": [...]}`.

    A part of a class is no kind of it and is passed over. A class may stand in several places.
    Raises PipelineError naming file and place.
    """
    above: dict[str, frozenset[str]] = {}

    def enter(node: Any, place: str, over: frozenset[str]) -> None:
        label = node.get("LabelName") if isinstance(node, dict) else None
        if not isinstance(label, str) or not label:
            raise PipelineError(
                f"{path}: {place or 'top'}: LabelName is {shown(label)}, wanted a class"
            )
        name = names.get(_lower(label), _lower(label))
        above[name] = above.get(name, frozenset()) | over - {name}
        inner = node.get("Subcategory", [])
        if not isinstance(inner, list):
            raise PipelineError(
                f"{path}: {place or 'top'}: Subcategory is {shown(inner)}, wanted a list"
            )
        for number, child in enumerate(inner):
            enter(child, f"{place}.Subcategory[{number}]".lstrip("."), over | {name})

    enter(read_json(path), "", frozenset())
    return ClassHierarchy(path=path, above=above)


def read_class_names(path: Path) -> dict[str, str]:
    """Label -> name, both in lower case, of a CSV of lines `/m/0bt9lr,Dog`."""
    names = {}
    for number, row in enumerate(csv.reader(lines_of(path)), 1):
        if row and len(row) != 2:
            raise PipelineError(f"{path}: line {number}: {len(row)} columns, wanted label,name")
        if row:
            names[_lower(row[0])] = _lower(row[1])
    return names


def read_classes(path: Path) -> dict[int, str]:
    """Line number -> class, in lower case, of a list with a class on every line."""
    return {n: _lower(line) for n, line in enumerate(lines_of(path), 1) if line.strip()}


def lines_of(path: Path) -> list[str]:
    """The lines of a text file. Raises PipelineError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: byte {error.start} is no UTF-8, wanted UTF-8") from error


def _lower(name: str) -> str:
    return name.strip().lower()
