"""Bottom-up attention as TSV: a line for each image, arrays in base64.

Two orders of columns: bottom-up-attention's six (`image_id image_w image_h num_boxes boxes
features`), and the ten of py-bottom-up-attention and LXMERT (`img_id img_h img_w objects_id
objects_conf attrs_id attrs_conf num_boxes boxes features`). Ids are int64, the rest float32; boxes
(N, 4) in pixels of the original, features (N, D). A line with the columns' names may come first.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from extract.cache import FeatureCache
from extract.errors import CacheError
from extract.formats.base import Entry, FormatError, own_name, record_of
from extract.records import ImageFeatures

ORDERS = {
    "butd-tsv": ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features"),
    "lxmert-tsv": (
        *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
        *("num_boxes", "boxes", "features"),
    ),
}
_EXTRAS = {  # column -> extra of the cache
    "objects_id": "objects",
    "objects_conf": "scores",
    "attrs_id": "attributes",
    "attrs_conf": "attribute_scores",
}


class ButdTsv:
    needs = ("regions",)
    single_file = True

    def __init__(self, name: str, summary: str) -> None:
        self.name, self.summary, self.columns = name, summary, ORDERS[name]
        self.known = tuple(extra for key, extra in _EXTRAS.items() if key in self.columns)

    def recognises(self, source: Path) -> bool:
        if not source.is_file():
            return False
        with source.open("rb") as file:
            first = file.readline(1 << 26)
        return len(first.split(b"\t")) == len(self.columns)

    def entries(self, source: Path) -> Iterator[Entry]:
        try:
            with source.open("rb") as file:
                for number, line in enumerate(file, 1):
                    fields = line.rstrip(b"\r\n").split(b"\t")
                    name = fields[0].decode("utf-8", "backslashreplace").strip()
                    if not line.strip() or name == self.columns[0]:
                        continue

                    def load(fields: list[bytes] = fields) -> ImageFeatures:
                        return self._record(fields)

                    where = f"{source.name}: line {number}"
                    yield Entry(name if len(fields) > 1 else where, where, load)
        except OSError as error:
            raise CacheError(f"{source}: cannot be read ({error.strerror})") from error

    def write(self, target: Path, cache: FeatureCache, on_done: Callable[[int], None]) -> None:
        with target.open("wb") as file:
            for record in cache:
                values = self._fields(record, target)
                file.write("\t".join(values[key] for key in self.columns).encode() + b"\n")
                on_done(1)

    def _record(self, fields: list[bytes]) -> ImageFeatures:
        if len(fields) != len(self.columns):
            raise FormatError(
                f"{len(fields)} columns, wanted {len(self.columns)} ({', '.join(self.columns)});"
                " the line is cut off or of another format"
            )
        text = dict(zip(self.columns, fields, strict=True))
        count = _whole(text, "num_boxes")
        features = _decoded(text["features"], "features", np.float32)
        if count < 1 or not len(features) or len(features) % count:
            raise FormatError(f"features has {len(features)} numbers for {count} boxes")
        found = record_of(features.reshape(count, -1))  # (N, D)
        prefix = self.columns[0].removesuffix("id")
        found.width, found.height = _whole(text, f"{prefix}w"), _whole(text, f"{prefix}h")
        boxes = _decoded(text["boxes"], "boxes", np.float32)
        if len(boxes) != 4 * count:
            raise FormatError(f"boxes has {len(boxes)} numbers for {count} boxes of 4")
        found.boxes["regions"] = boxes.reshape(count, 4)  # (N, 4)
        extras = {}
        for key, extra in _EXTRAS.items():
            if key in text:
                kind = np.int64 if key.endswith("id") else np.float32
                extras[extra] = _decoded(text[key], key, kind)  # (N,)
                if len(extras[extra]) != count:
                    raise FormatError(f"{key} has {len(extras[extra])} values for {count} boxes")
        if extras:
            found.extras["regions"] = extras
        return found

    def _fields(self, record: ImageFeatures, target: Path) -> dict[str, str]:
        boxes = record.boxes.get("regions")
        if boxes is None or not record.width:
            raise CacheError(
                f"{target}: image {record.image_id!r} has no boxes or no known size; a TSV needs"
                " both: import the source with --sizes, or choose another --format"
            )
        found = {
            "image_id": record.image_id,
            "img_id": own_name(record, suffix=False),
            **dict.fromkeys(("image_w", "img_w"), str(record.width)),
            **dict.fromkeys(("image_h", "img_h"), str(record.height)),
            "num_boxes": str(len(boxes)),
            "boxes": _encoded(boxes, np.float32),
            "features": _encoded(record.streams["regions"], np.float32),
        }
        for key in ("image_id", "img_id"):
            if any(mark in found[key] for mark in "\t\r\n"):
                raise CacheError(f"{target}: the image id {found[key]!r} cannot stand in a TSV")
        for key, extra in _EXTRAS.items():
            if key in self.columns:
                kind = np.int64 if key.endswith("id") else np.float32
                found[key] = _encoded(record.extras["regions"][extra], kind)
        return found


def _whole(text: dict[str, bytes], key: str) -> int:
    try:
        return int(text[key])
    except ValueError as error:
        raise FormatError(f"{key} is {text[key][:20]!r}, wanted a whole number") from error


def _decoded(data: bytes, key: str, kind: type[np.generic]) -> np.ndarray:
    """The numbers in base64: (n,). Raises FormatError."""
    try:
        raw = base64.b64decode(data, validate=True)
        return np.frombuffer(raw, dtype=np.dtype(kind).newbyteorder("<")).astype(kind)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"{key} is no base64 of {np.dtype(kind)} ({error})") from error


def _encoded(values: np.ndarray, kind: type[np.generic]) -> str:
    ordered = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(ordered.tobytes()).decode("ascii")
