"""Which images somebody wants: the names in a list, a table or a captions file.

Each may be packed by gzip (`.txt.gz`).
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from caption.data import IMAGE_COLUMNS, file_ids, form_of, read_captions, unpacked
from pipeline.entries import read_json
from pipeline.errors import PipelineError

_WANTED = (
    "wanted a list of ids or file names (one a line, or JSON), a CSV or TSV with a column"
    f" {' or '.join(IMAGE_COLUMNS)}, or Karpathy or COCO JSON"
)


def read_names(path: Path) -> dict[str, str | None]:
    """Ids or file names, each once and in the file's order -> the id by file name, if there too.

    Raises PipelineError or CaptionError naming the file and what is wrong with it.
    """
    suffix = form_of(path)
    if suffix == ".json":
        names = _of_json(path)
    elif suffix in (".csv", ".tsv"):
        names = dict.fromkeys(_of_table(path))
    else:
        names = dict.fromkeys(line.strip() for line in _lines(path))
    names = {name: other for name, other in names.items() if name}
    if not names:
        raise PipelineError(f"{path}: names no image, {_WANTED}")
    return names


def _of_json(path: Path) -> dict[str, str | None]:
    content = read_json(path, _WANTED)
    if isinstance(content, list):
        listed = enumerate(content, 1)
        return dict.fromkeys(_name(path, f"entry {place}", item) for place, item in listed)
    if isinstance(content, dict) and ("annotations" in content or _karpathy(content)):
        images = read_captions(path).images
        files = file_ids(images)
        named = set(files.values())  # an id that is another image's file name does not count
        return {
            files.get(i.image_id, i.image_id) if i.image_id in named else i.image_id: files.get(
                i.image_id
            )
            for i in images
        }
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        listed = enumerate(content["images"])
        return dict.fromkeys(_name(path, f"images[{k}]", item) for k, item in listed)
    raise PipelineError(f"{path}: holds a {type(content).__name__}, {_WANTED}")


def _karpathy(content: dict[str, Any]) -> bool:
    images = content.get("images")
    return isinstance(images, list) and any(
        isinstance(i, dict) and "sentences" in i for i in images
    )


def _name(path: Path, place: str, item: Any) -> str:
    """An id that stands for itself, or the one in an entry such as COCO's."""
    keys = ("cocoid", "image_id", "id", "filename", "file_name")
    value = next((item[k] for k in keys if k in item), None) if isinstance(item, dict) else item
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PipelineError(f"{path}: {place} is {value!r}, wanted an id or a file name")
    return str(value)


def _of_table(path: Path) -> list[str]:
    separator = "\t" if form_of(path) == ".tsv" else ","
    rows = csv.reader(_lines(path), delimiter=separator)
    header = [name.strip().lower() for name in next(rows, [])]
    column = next((header.index(name) for name in IMAGE_COLUMNS if name in header), None)
    if column is None:
        raise PipelineError(
            f"{path}: line 1: found the columns {', '.join(header) or 'none'}, {_WANTED}"
        )
    names = []
    for row in rows:
        if row and len(row) <= column:
            raise PipelineError(f"{path}: line {rows.line_num}: {len(row)} columns")
        names += [row[column].strip()] if row else []
    return names


def _lines(path: Path) -> list[str]:
    try:
        text = unpacked(path).decode("utf-8-sig")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: byte {error.start} is no UTF-8, wanted UTF-8") from error
    return io.StringIO(text, newline=None).read().split("\n")  # whatever ends the lines
