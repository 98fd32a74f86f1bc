"""Word vectors from a text file as GloVe's: `word v1 ... vE` on every line, `.gz` or not.

Pennington, Socher, Manning, "GloVe: Global Vectors for Word Representation" (EMNLP 2014). Such
files have gigabytes; they are read line by line, and only the words asked for are kept.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from caption.errors import CaptionError

_LONGEST = 1 << 20  # bytes of a line: no vector is longer
_NUMBERS = b"0123456789+-.eE "


@dataclass(frozen=True, kw_only=True)
class VectorFile:
    """What a file has of the words asked for."""

    path: Path
    sha256: str  # of the file as it lies there
    vectors: dict[str, list[float]] = field(repr=False)


def read_vectors(path: Path, words: Collection[str], width: int) -> VectorFile:
    """The vectors of `words`, each of `width` numbers; of a word that comes twice, the first.

    Every line is looked at. Raises CaptionError naming file and line where one has another
    number of values or something that is no number.
    """
    wanted = {word.encode(): word for word in words}
    vectors: dict[str, list[float]] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line:
            continue
        where = f"{path}: line {number}"
        name, values = _parts(line, width, where)
        word = wanted.get(name)
        if word is not None and word not in vectors:
            vectors[word] = _numbers(values, where)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return VectorFile(path=path, sha256=sha256, vectors=vectors)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines without their ends."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(_LONGEST):
                yield line.rstrip(b" \r\n")
    except (OSError, EOFError, zlib.error) as error:
        raise CaptionError(f"{path}: cannot be read as word vectors ({error})") from error


def _parts(line: bytes, width: int, where: str) -> tuple[bytes, bytes]:
    """The word and its values as text. GloVe's 840B file has words with blanks in them."""
    blanks = line.count(b" ")
    if blanks == width:
        name, _, values = line.partition(b" ")
    else:
        name, *rest = line.rsplit(b" ", width)
        values = b" ".join(rest)
        if blanks < width or _is_number(name.rpartition(b" ")[2]):
            raise CaptionError(
                f"{where}: has {blanks} values, wanted a word and {width} numbers, with blanks"
                " between them (model.vectors is their number)"
            )
    if values.translate(None, _NUMBERS):
        _numbers(values, where)
    return name, values


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(values: bytes, where: str) -> list[float]:
    numbers = []
    for value in values.split(b" "):
        numbers.append(float(value) if _is_number(value) else math.nan)
        if not math.isfinite(numbers[-1]):
            text = value.decode(errors="replace")
            raise CaptionError(f"{where}: {text!r} stands there, wanted a number")
    return numbers
