"""Caption files read as one thing: images with their captions and splits.

Karpathy JSON (`dataset_*.json`), COCO `captions_*.json`, and CSV or TSV with the columns
`image,caption[,split]`, packed by gzip or not. Image ids are strings: a COCO number, else the file
name's stem.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caption.errors import CaptionError
from extract.cache import FeatureCache, image_id_of

log = logging.getLogger(__name__)

IMAGE_COLUMNS = ("image", "image_id", "filename", "file_name", "path", "id")
TRAIN_SPLITS = ("train", "restval")  # Karpathy's `restval` belongs to training
_TABLES = (".csv", ".tsv")
_GZIP = b"\x1f\x8b"  # how gzip begins


@dataclass(kw_only=True)
class CaptionedImage:
    """One image: its id, split (None where the file has none), captions and tokens if given."""

    image_id: str
    split: str | None = None
    captions: list[str] = field(default_factory=list)
    tokens: list[list[str]] | None = None
    filename: str | None = None


@dataclass(frozen=True, kw_only=True)
class CaptionData:
    """The images of one caption file, in the file's order."""

    path: Path
    images: list[CaptionedImage]
    uncaptioned: list[str] = field(default_factory=list)  # ids of images that have no caption

    def split(self, name: str) -> list[CaptionedImage]:
        """The images of a split; `train` includes Karpathy's `restval`.

        Raises CaptionError naming the splits there are.
        """
        wanted = TRAIN_SPLITS if name == "train" else (name,)
        found = [image for image in self.images if image.split in wanted]
        if not found:
            splits = sorted({image.split for image in self.images if image.split is not None})
            raise CaptionError(
                f"{self.path}: no image of split {name!r}; it has "
                f"{', '.join(splits) if splits else f'no splits: {self._where_splits_go()}'}"
            )
        return found

    def _where_splits_go(self) -> str:
        values = "train, val or test"
        if form_of(self.path) in _TABLES:
            return f"add a column `split` with {values} in every line"
        return f'add a key "split" with {values} to each entry of `images`'


def file_ids(images: Iterable[CaptionedImage]) -> dict[str, str]:
    """Image id -> the id that extraction gives a photograph of that image's file name."""
    return {i.image_id: image_id_of(i.filename) for i in images if i.filename is not None}


def names_in(cache: FeatureCache, images: Iterable[CaptionedImage]) -> dict[str, str]:
    """Image id -> id in the cache, of images of a file that go by their file names there.

    A caption file may number its images as it likes (nocaps, labelling programs): its file names
    say which photographs they are, and its ids only where the cache does not know those names and
    no other image of the file has such a name.
    """
    files = file_ids(images)
    named = set(files.values())
    found = {
        image: name
        for image, name in files.items()
        if name != image and (name in cache or image in named)
    }
    if any(image in cache for image in found):
        log.info("%s: images are looked up by the captions' file names, not by ids", cache.path)
    return found


def form_of(path: Path) -> str:
    """The suffix that says how a file is written: `.csv` of `a.CSV` and of `a.csv.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == ".gz" else suffix


def unpacked(path: Path) -> bytes:
    """The bytes of a file, unpacked where they are gzip, whatever its name.

    Raises OSError when it cannot be read, CaptionError when the gzip ends early or is damaged.
    """
    data = path.read_bytes()
    try:
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CaptionError(
            f"{path}: gzip that ends early or is damaged ({error}); get or pack the file again"
        ) from error


def read_captions(path: str | Path) -> CaptionData:
    """Read a caption file of any known form.

    Raises CaptionError with file and line or entry for whatever cannot be read.
    """
    path = Path(path)
    try:
        if form_of(path) in _TABLES:
            images = _read_table(path)
        else:
            images = _read_json(path)
    except OSError as error:
        raise CaptionError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise CaptionError(f"{path}: byte {error.start} is no UTF-8, wanted UTF-8") from error
    captioned = [image for image in images if image.captions]
    if not captioned:
        raise CaptionError(f"{path}: holds no captioned image")
    uncaptioned = [image.image_id for image in images if not image.captions]
    return CaptionData(path=path, images=captioned, uncaptioned=uncaptioned)


def tokenized(image: CaptionedImage, source: Path) -> list[str]:
    """The captions as the tokens that the file carries, joined by spaces.

    Raises CaptionError where it carries none.
    """
    if image.tokens is None:
        raise CaptionError(
            f"{source}: image {image.image_id} has no `tokens`, but data.tokenizer is 'file';"
            " type -o data.tokenizer=ptb"
        )
    return [" ".join(words) for words in image.tokens]


def _read_table(path: Path) -> list[CaptionedImage]:
    images: dict[str, CaptionedImage] = {}
    with io.StringIO(unpacked(path).decode("utf-8-sig"), newline="") as file:
        rows = csv.reader(file, delimiter="\t" if form_of(path) == ".tsv" else ",")
        header = [name.strip().lower() for name in next(rows, [])]
        image_column = next((header.index(name) for name in IMAGE_COLUMNS if name in header), None)
        if image_column is None or "caption" not in header:
            raise CaptionError(
                f"{path}: line 1: found the columns {', '.join(header) or 'none'},"
                " wanted image,caption[,split]"
            )
        caption_column = header.index("caption")
        split_column = header.index("split") if "split" in header else None
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise CaptionError(
                    f"{path}: line {rows.line_num}: {len(row)} columns, wanted {len(header)}"
                    " (quote captions that hold the separator)"
                )
            name, split = row[image_column].strip(), None
            if split_column is not None:
                split = row[split_column].strip() or None
            if not name:
                raise CaptionError(f"{path}: line {rows.line_num}: the image's name is empty")
            _add_row(images, path, rows.line_num, name, split, row[caption_column])
    return list(images.values())


def _add_row(
    images: dict[str, CaptionedImage],
    path: Path,
    line: int,
    name: str,
    split: str | None,
    caption: str,
) -> None:
    key = image_id_of(name)
    image = images.setdefault(key, CaptionedImage(image_id=key, split=split, filename=name))
    if image.filename != name:
        raise CaptionError(
            f"{path}: line {line}: {name} and {image.filename} have the same image id {key!r}"
        )
    if image.split != split:
        raise CaptionError(
            f"{path}: line {line}: {name} is in split {split!r} here and in {image.split!r} above"
        )
    image.captions.append(caption)


def _read_json(path: Path) -> list[CaptionedImage]:
    try:
        content = json.loads(unpacked(path).decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise CaptionError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}, wanted JSON"
        ) from error
    wanted = "wanted Karpathy's {images: [{sentences: ...}]} or COCO's {images, annotations}"
    if not isinstance(content, dict):
        raise CaptionError(f"{path}: holds a {type(content).__name__}, {wanted}")
    if isinstance(content.get("annotations"), list):
        return _read_coco(path, content)
    images = content.get("images")
    if isinstance(images, list):
        if images and not any(_karpathys(entry) for entry in images):
            raise CaptionError(
                f"{path}: has `images` but no list `annotations`; image_info files have no"
                f" captions, {wanted}, as a captions_*.json or dataset_*.json has"
            )
        return _read_karpathy(path, images)
    keys = ", ".join(map(repr, list(content)[:10])) + ", ..." * (len(content) > 10)
    raise CaptionError(f"{path}: found the keys {keys}, {wanted}")


def _karpathys(entry: Any) -> bool:
    return isinstance(entry, dict) and ("sentences" in entry or "filename" in entry)


def _read_coco(path: Path, content: dict[str, Any]) -> list[CaptionedImage]:
    images: dict[str, CaptionedImage] = {}
    for number, entry in enumerate(content.get("images") or []):
        where = f"images[{number}]"
        key = str(_value(path, where, entry, "id", (int, str)))
        if key in images:
            raise CaptionError(f"{path}: {where}: image id {key!r} stands there twice")
        images[key] = CaptionedImage(
            image_id=key, split=entry.get("split"), filename=entry.get("file_name")
        )
    for number, entry in enumerate(content["annotations"]):
        where = f"annotations[{number}]"
        key = str(_value(path, where, entry, "image_id", (int, str)))
        caption = _value(path, where, entry, "caption", (str,))
        images.setdefault(key, CaptionedImage(image_id=key)).captions.append(caption)
    return list(images.values())


def _read_karpathy(path: Path, entries: list[Any]) -> list[CaptionedImage]:
    images: dict[str, CaptionedImage] = {}
    for number, entry in enumerate(entries):
        where = f"images[{number}]"
        filename = _value(path, where, entry, "filename", (str,))
        sentences = _value(path, where, entry, "sentences", (list,))
        key = str(entry["cocoid"]) if "cocoid" in entry else image_id_of(filename)
        if key in images:
            raise CaptionError(
                f"{path}: {where}: {filename} and {images[key].filename} have the same id {key!r}"
            )
        captions: list[str] = []
        tokens: list[list[str] | None] = []
        for place, sentence in enumerate(sentences):
            inner = f"{where}.sentences[{place}]"
            tokens.append(sentence.get("tokens") if isinstance(sentence, dict) else None)
            raw = sentence.get("raw") if isinstance(sentence, dict) else None
            if raw is None and tokens[-1] is not None:
                raw = " ".join(tokens[-1])
            if not isinstance(raw, str):
                raise CaptionError(f"{path}: {inner}: neither `raw` nor `tokens`, wanted a caption")
            captions.append(raw)
        images[key] = CaptionedImage(
            image_id=key,
            split=entry.get("split"),
            captions=captions,
            tokens=None if None in tokens else [words for words in tokens if words is not None],
            filename=filename,
        )
    return list(images.values())


def _value(path: Path, where: str, entry: Any, key: str, types: tuple[type, ...]) -> Any:
    found = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(found, types) or isinstance(found, bool):
        names = " or ".join(kind.__name__ for kind in types)
        raise CaptionError(f"{path}: {where}: `{key}` is {found!r}, wanted a {names}")
    return found
