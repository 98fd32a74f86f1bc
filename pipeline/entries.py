"""The forms in which people keep captions, read as one: entries of place, image and caption.

COCO result JSON `[{"image_id": ..., "caption": ...}]`, JSON lines of the same, a dict id ->
caption or captions, Karpathy and COCO captions JSON, CSV and TSV; each packed by gzip or not.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from caption.data import CaptionData, CaptionedImage, form_of, read_captions, unpacked
from caption.errors import CaptionError
from pipeline.errors import PipelineError, WrongUsage

WANTED = (
    'wanted [{"image_id": ..., "caption": ...}, ...], {"id": "caption", ...} (references:'
    ' {"id": ["caption", ...], ...}), Karpathy or COCO captions JSON, JSON lines, CSV or TSV'
)
_DATASET = re.compile(r'"(?:images|annotations)"\s*:\s*\[')
_IMAGES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF"}  # by their first bytes
_PEEK = 1 << 16  # characters in which a data set shows itself
_NAMES = ("image_id", "image", "file_name", "filename")
_ID_KEYS = (*_NAMES, "id")  # the last may be the caption's own, as in COCO's annotations
_WRAPPERS = ("results", "captions", "predictions", "data")  # keys that are no image's id


class Entry(NamedTuple):
    """One caption of a file: where it stands there, its image's id as given, and its text."""

    position: str
    image: int | str
    caption: Any


def entries(path: Path, split: str | None) -> Iterator[Entry]:
    """Every caption of a file with its place; several per image are allowed here.

    Raises PipelineError or CaptionError naming the file and place of what cannot be read, and
    when `split` is given but the file has no such split.
    """
    suffix, text = form_of(path), _text(path)
    if _is_data_set(suffix, text):
        yield from _data_set_entries(path, split)
        return
    if split is not None:
        raise WrongUsage(f"{path}: has no splits; leave out --split {split}")
    if suffix in (".jsonl", ".ndjson"):
        yield from _line_entries(path, text)
        return
    content = _parsed(path, text)
    if isinstance(content, list):
        for number, item in enumerate(content, 1):
            yield _item_entry(path, f"entry {number}", item)
    elif isinstance(content, dict):
        _refuse_wrapped(path, content)
        yield from _dict_entries(content)
    else:
        raise PipelineError(f"{path}: holds {shown(content)}, {WANTED}")


def data_set(path: Path) -> CaptionData | None:
    """What a data set says of its images beside their captions; None for the other forms.

    Raises PipelineError or CaptionError where the file cannot be read.
    """
    return read_captions(path) if _is_data_set(form_of(path), _text(path)) else None


def _is_data_set(suffix: str, text: str) -> bool:
    return suffix in (".csv", ".tsv") or _DATASET.search(text, 0, _PEEK) is not None


def _data_set_entries(path: Path, split: str | None) -> Iterator[Entry]:
    data = read_captions(path)
    if split is not None and all(image.split is None for image in data.images):
        raise WrongUsage(f"{path}: has no splits; leave out --split {split}")
    for image in data.images if split is None else images_of(data, split):
        for number, caption in enumerate(image.captions, 1):
            yield Entry(f"caption {number}", image.image_id, caption)


def images_of(data: CaptionData, split: str) -> list[CaptionedImage]:
    """The images of a split that was typed. Raises WrongUsage naming the splits there are."""
    try:
        return data.split(split)
    except CaptionError as error:
        raise WrongUsage(str(error)) from error


def _line_entries(path: Path, text: str) -> Iterator[Entry]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                item = json.loads(line)
            except ValueError as error:
                raise PipelineError(
                    f"{path}: line {number}: no JSON ({error}), wanted"
                    ' {"image_id": ..., "caption": ...}'
                ) from error
            yield _item_entry(path, f"line {number}", item)


def _item_entry(path: Path, position: str, item: Any) -> Entry:
    if not isinstance(item, dict) or "caption" not in item:
        raise PipelineError(
            f'{path}: {position} is {shown(item)}, wanted {{"image_id": ..., "caption": ...}}'
        )
    key = next((key for key in _ID_KEYS if key in item), None)
    if key is None:
        raise PipelineError(
            f"{path}: {position} has the keys {', '.join(map(repr, item))}, wanted 'image_id'"
        )
    return Entry(position, _image(path, position, key, item[key]), item["caption"])


def _image(path: Path, position: str, key: str, value: Any) -> int | str:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)  # as spreadsheets and data frames write whole numbers
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise PipelineError(
            f"{path}: {position}: {key} is {shown(value)}, wanted a number or a string"
        )
    return value


def _refuse_wrapped(path: Path, content: Mapping[str, Any]) -> None:
    """Raise PipelineError where the keys are no images: one entry alone, or a list in an object."""
    if "caption" in content and any(key in content for key in _ID_KEYS):
        raise PipelineError(
            f"{path}: holds one entry {shown(content)}, wanted a list of such entries:"
            ' [{"image_id": ..., "caption": ...}, ...]'
        )
    for name, value in content.items():
        inner = (
            [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        )
        known = _ID_KEYS if name.lower() in _WRAPPERS else _NAMES
        keys = [next((key for key in known if key in item), None) for item in inner]
        images = {str(item[key]) for item, key in zip(inner, keys, strict=True) if key is not None}
        if len(images) > 1 or (name.isalpha() and images and name not in min(images)):
            bare = " with 'id' in place of 'image_id'" if "id" in keys else ""
            raise PipelineError(
                f"{path}: key {name!r} holds a list of entries ({len(inner):,}){bare}, wanted the"
                ' list itself: [{"image_id": ..., "caption": ...}, ...]'
            )


def _dict_entries(content: Mapping[str, Any]) -> Iterator[Entry]:
    for image, value in content.items():
        for number, caption in enumerate(value if isinstance(value, list) else [value], 1):
            if isinstance(caption, dict) and "caption" in caption:
                caption = caption["caption"]
            place = f"key {image!r}" + (f", caption {number}" if isinstance(value, list) else "")
            yield Entry(place, image, caption)


def _text(path: Path, wanted: str = WANTED) -> str:
    """The file as text. UTF-8, with or without a byte-order mark, is the one encoding read."""
    try:
        data = unpacked(path)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not data.strip():
        raise PipelineError(f"{path}: is empty; {wanted}")
    image = next((name for start, name in _IMAGES.items() if data.startswith(start)), None)
    if image is not None:
        raise PipelineError(f"{path}: is an image ({image}); {wanted}")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise PipelineError(
            f"{path}: is UTF-16, wanted UTF-8; convert it: iconv -f UTF-16 -t UTF-8"
            f" {shlex.quote(str(path))} > NEW"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PipelineError(
            f"{path}: line {line}, byte {error.start}: {data[error.start : error.start + 1]!r} is"
            f" no UTF-8; convert the file: iconv -f LATIN1 -t UTF-8 {shlex.quote(str(path))} > NEW"
        ) from error


def _parsed(path: Path, text: str, wanted: str = WANTED) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            doubled = [key for key, count in counts.items() if count > 1]
            raise PipelineError(
                f"{path}: the key {doubled[0]!r} stands {counts[doubled[0]]} times in one object"
                f" ({len(doubled)} such keys), wanted once; keep one of them"
            )
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        hint = " (one JSON object per line? name it .jsonl)" if "Extra data" in error.msg else ""
        raise PipelineError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}{hint}; {wanted}"
        ) from error
    except RecursionError as error:
        raise PipelineError(f"{path}: nested too deeply; {wanted}") from error


def read_json(path: Path, wanted: str = WANTED) -> Any:
    """A JSON file's content. Raises PipelineError with line and column; doubled keys are errors.

    `wanted` is what the message asks for.
    """
    return _parsed(path, _text(path, wanted), wanted)


def shown(value: Any) -> str:
    """A value of a JSON file for a message, cut where it is long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character
    return text if len(text) <= 40 else f"{text[:37]}..."
