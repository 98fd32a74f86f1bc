"""METEOR's paraphrase table cut down to the words and references of the data at hand.

METEOR's table holds 5.27 million phrase pairs, and loading them is nearly all of its start-up
time and memory. A pair can match only where all its words occur and one of its phrases stands in
a reference, so these pairs give the same scores: one in twenty. Cut tables are kept in the cache
folder, outside the installation.

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
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evaluate.paths import cache_dir

log = logging.getLogger(__name__)

_PIECES = (re.compile(r"[^\W_]+|.", re.DOTALL), re.compile(r"[A-Za-z0-9]+|.", re.DOTALL))
_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-"})
_MARKS = string.punctuation.encode()
_MOST_PIECES = 8  # joined to one word
_CHUNK = 1 << 20  # bytes
# Pairs with the same first phrase, which stand together: probability, phrase, phrase; and again
_RUN = re.compile(rb".*\n(.*)\n.*\n(?:.*\n\1\n.*\n)*")
_KEPT = 20  # cut tables kept in the cache


def is_plain(text: str) -> bool:
    """Whether METEOR's normaliser leaves a text as it is: lower-case ASCII words and blanks."""
    return text.isascii() and text.replace(" ", "").isalnum() and text == text.lower()


def meteor_words(texts: Iterable[str]) -> set[str]:
    """Every word that METEOR's own normaliser can make of the texts, and some more.

    It lower-cases, straightens quotes and dashes, cuts at punctuation, hyphens and between
    letters of some scripts, keeps some apostrophes and full stops with their word and drops the
    stops of `u.s.a.`; all joins of neighbouring pieces of each word cover that.
    """
    words = set(string.punctuation)
    for token in {token for text in texts for token in text.split()}:
        if is_plain(token):
            words.add(token)
            continue
        for pieces in _cuts(token):
            words.add("".join(pieces))
            for at in range(len(pieces)):
                words.update(_starting(pieces, at))
    words.discard("")
    return words


def neighbours(texts: Iterable[str]) -> set[str]:
    """Any two words, with a blank, that can stand together in what METEOR makes of the texts."""
    pairs: set[str] = set()
    for text in texts:
        tokens = text.split()
        if is_plain(text):
            pairs.update(map(" ".join, zip(tokens, tokens[1:], strict=False)))
            continue
        before: set[str] = set()  # what the token before can end with
        for token in tokens:
            first, last = set(), set()
            for pieces in _cuts(token):
                first |= {"".join(pieces), *_starting(pieces, 0)}
                last |= {"".join(pieces), *_ending(pieces, len(pieces))}
                for at in range(1, len(pieces)):
                    pairs.update(_crossed(_ending(pieces, at), _starting(pieces, at)))
            pairs.update(_crossed(before, first))
            before = last
    return pairs


def _cuts(token: str) -> Iterator[list[str]]:
    """A token in pieces, in every way; METEOR's words are joins of neighbouring ones."""
    plain = token.translate(_STRAIGHT).replace("---", "--")
    for form in {token, plain, plain.replace(".", "")} - {""}:
        for pattern in _PIECES:
            yield pattern.findall(form.lower())


def _starting(pieces: Sequence[str], at: int) -> list[str]:
    ends = range(at + 1, min(len(pieces), at + _MOST_PIECES) + 1)
    return ["".join(pieces[at:end]) for end in ends]


def _ending(pieces: Sequence[str], end: int) -> list[str]:
    return ["".join(pieces[at:end]) for at in range(max(0, end - _MOST_PIECES), end)]


def _crossed(before: Iterable[str], behind: Collection[str]) -> Iterator[str]:
    return (f"{one} {other}" for one in before for other in behind)


def cut_table(source: Path, references: Collection[str], extra: Iterable[str] = ()) -> Path:
    """The table `source` cut to reference captions and to the words that others may hold.

    `extra` are the candidates' words (see `meteor_words`). Cached by the references: a cached
    table is used when it covers `extra` too; otherwise a larger one takes its place, so that
    after a few runs on the same references every run finds its table. Written atomically.
    """
    folder, stat = cache_dir("meteor"), source.stat()
    key = _digest([f"{stat.st_size} {stat.st_mtime_ns}", *sorted(set(references))])
    base = meteor_words(references)
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
    phrases = _Phrases(_encoded(base), _encoded(neighbours(references)))
    _write(table, _kept_pairs(source, _encoded(words), phrases))
    _tidy(folder, table, key)
    return table


def _encoded(words: Iterable[str]) -> set[bytes]:
    return {word.encode("utf-8", "replace") for word in words}


class _Phrases:
    """The phrases that can stand in the references, and some more."""

    def __init__(self, words: set[bytes], pairs: set[bytes]) -> None:
        self._short = words | pairs  # phrases of one word, and of two

    def hold(self, phrase: bytes) -> bool:
        """Whether the phrase may be found in a reference."""
        if phrase in self._short:
            return True
        words = phrase.split()
        before = words[0] if len(words) > 1 else b"?"
        for word in words[1:]:
            if b"%s %s" % (before, word) not in self._short:
                # METEOR may spell marks anew, so they stand anywhere.
                if before.strip(_MARKS) and word.strip(_MARKS):
                    return False
            before = word
        return len(words) > 1


def _kept_pairs(source: Path, words: set[bytes], phrases: _Phrases) -> Iterator[bytes]:
    """The lines of the pairs that are all of `words` and one of them of `phrases`, in blocks."""
    for block in _blocks(source):
        kept = []
        for run in _RUN.finditer(block):
            if not words.issuperset(run[1].split()):
                continue
            held, lines = phrases.hold(run[1]), run[0].split(b"\n")
            for index in range(2, len(lines), 3):
                other = lines[index]
                if (held or phrases.hold(other)) and words.issuperset(other.split()):
                    kept += lines[index - 2 : index + 1]
        if kept:
            yield b"\n".join(kept) + b"\n"


def _blocks(source: Path) -> Iterator[bytes]:
    """A gzip file in large blocks of whole pairs; the next is unpacked while one is looked at."""
    inflate, rest = zlib.decompressobj(wbits=31), b""
    with open(source, "rb") as file, ThreadPoolExecutor(max_workers=1) as unpacker:

        def unpacked() -> bytes | None:
            packed = file.read(_CHUNK)
            return inflate.decompress(packed) if packed else None

        coming = unpacker.submit(unpacked)
        while (data := coming.result()) is not None:
            coming = unpacker.submit(unpacked)
            block = rest + data
            end = _end_of_pairs(block)
            yield block[:end]
            rest = block[end:]
    rest += inflate.flush()
    yield rest if rest.endswith(b"\n") else rest + b"\n"


def _end_of_pairs(block: bytes) -> int:
    """Where the last whole pair of a block ends."""
    end = len(block)
    for _ in range(block.count(b"\n") % 3 + 1):
        end = block.rfind(b"\n", 0, end)
    return end + 1


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
