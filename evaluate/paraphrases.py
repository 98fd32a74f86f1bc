"""METEOR's paraphrase table cut down to the words of the data at hand.

METEOR's table holds 5.27 million phrase pairs, and loading them is nearly all of its start-up
time and memory. A pair can match only where all its words occur, so the pairs whose words all
belong to the data give the same scores. Cut tables are kept in the cache folder, outside the
installation.

Table format: gzip, three lines per pair: probability, phrase, phrase; words joined by one blank.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import re
import string
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from evaluate.paths import cache_dir

log = logging.getLogger(__name__)

_PIECES = (re.compile(r"[^\W_]+|.", re.DOTALL), re.compile(r"[A-Za-z0-9]+|.", re.DOTALL))
_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-"})
_MOST_PIECES = 8  # joined to one word
_CHUNK = 1 << 22  # bytes
_KEPT = 20  # cut tables kept in the cache


def meteor_words(texts: Iterable[str]) -> set[str]:
    """Every word that METEOR's own normaliser can make of the texts, and some more.

    It lower-cases, straightens quotes and dashes, cuts at punctuation, hyphens and between
    letters of some scripts, keeps some apostrophes and full stops with their word and drops the
    stops of `u.s.a.`; all joins of neighbouring pieces of each word cover that.
    """
    words = set(string.punctuation)
    for token in {token for text in texts for token in text.split()}:
        plain = token.translate(_STRAIGHT).replace("---", "--")
        for form in {token, plain, plain.replace(".", "")}:
            words.add(form.lower())
            if not form.isalnum() or not form.isascii():
                words.update(_joins(form))
    words.discard("")
    return words


def _joins(form: str) -> Iterator[str]:
    for pattern in _PIECES:
        pieces = pattern.findall(form)
        for length in range(1, min(len(pieces), _MOST_PIECES) + 1):
            for start in range(len(pieces) - length + 1):
                yield "".join(pieces[start : start + length]).lower()


def cut_table(source: Path, base: Iterable[str], extra: Iterable[str] = ()) -> Path:
    """The table `source` cut to the words `base` and `extra` (see `meteor_words`).

    Cached by `base` (the references' words): a cached table is used when it covers `extra` (the
    candidates' words) too; otherwise a larger one takes its place, so that after a few runs on
    the same references every run finds its table. Written atomically.
    """
    base, folder = set(base), cache_dir("meteor")
    stat = source.stat()
    key = _digest([f"{stat.st_size} {stat.st_mtime_ns}", *sorted(base)])
    words = base | set(extra)
    for table in sorted(folder.glob(f"{key}-*.gz")):
        known = _words_of(table)
        if words <= known:
            _touch(table)
            return table
        words |= known
    table = folder / f"{key}-{_digest(sorted(words))}.gz"
    log.debug("cutting %s to %d words", source, len(words))
    # The words first: a table without them would never be found again.
    _write(table.with_suffix(".words"), ["\n".join(sorted(words)).encode("utf-8", "replace")])
    _write(table, _kept_pairs(source, {w.encode("utf-8", "replace") for w in words}))
    _tidy(folder, table, key)
    return table


def _kept_pairs(source: Path, words: set[bytes]) -> Iterator[bytes]:
    """The lines of the pairs whose words are all in `words`, in blocks."""
    previous, known = b"", False
    for lines in _blocks(source):
        kept = []
        # The table is sorted by its first phrase, which is looked at once per run of pairs.
        for index in range(1, len(lines), 3):
            phrase = lines[index]
            if phrase != previous:
                previous, known = phrase, words.issuperset(phrase.split())
            if known and words.issuperset(lines[index + 1].split()):
                kept += lines[index - 1 : index + 2]
        if kept:
            yield b"\n".join(kept) + b"\n"


def _blocks(source: Path) -> Iterator[list[bytes]]:
    """The lines of a gzip file in long lists, each of a multiple of three lines."""
    inflate, rest, lines = zlib.decompressobj(wbits=31), b"", []
    with open(source, "rb") as file:
        while packed := file.read(_CHUNK):
            block = (rest + inflate.decompress(packed)).split(b"\n")
            rest = block.pop()
            lines += block
            whole = len(lines) - len(lines) % 3
            yield lines[:whole]
            lines = lines[whole:]
    lines += [line for line in (rest + inflate.flush()).split(b"\n") if line]
    yield lines[: len(lines) - len(lines) % 3]


def _words_of(table: Path) -> set[str]:
    try:
        return set(table.with_suffix(".words").read_text("utf-8").split("\n"))
    except (OSError, UnicodeDecodeError):
        return set()


def _write(path: Path, blocks: Iterable[bytes]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
                    packed.writelines(blocks)
            else:
                file.writelines(blocks)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _tidy(folder: Path, newest: Path, key: str) -> None:
    """Drop the tables that the newest replaces, and those long unused."""
    tables = sorted(folder.glob("*.gz"), key=_age)
    for table in tables:
        replaced = table.name.startswith(key) and table != newest
        if replaced or table in tables[_KEPT:]:
            table.unlink(missing_ok=True)
            table.with_suffix(".words").unlink(missing_ok=True)


def _age(table: Path) -> float:
    try:
        return -table.stat().st_mtime
    except OSError:
        return 0.0  # another process has just dropped it


def _touch(table: Path) -> None:
    try:
        os.utime(table)
    except OSError:
        log.debug("cannot mark %s as used", table)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:24]
