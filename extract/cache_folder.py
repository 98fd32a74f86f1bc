"""A cache's folder: the names in it, its description, its journals and its failures.

`cache.json` (streams and meta), and for each writing process of rank R: `shard-R-NUMBER.h5`,
`journal-R.jsonl` (one line per finished shard: `shard`, `sha256`, `ids`) and `failures.jsonl`
(`failures-R.jsonl` from rank 1 on; one line per image that could not be done: `image_id`, `file`,
`reason`, `detail`). A shard that no journal names does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.errors import CacheError
from extract.records import DTYPES, Stream
from extract.shard import SCHEMA

_SHARD = re.compile(r"shard-(\d+)-(\d+)\.h5")
_FAILURES = re.compile(r"failures(?:-(\d+))?\.jsonl")
_RANKED = re.compile(r"(?:shard-(\d+)-\d+\.h5|journal-(\d+)\.jsonl)")


@dataclass(frozen=True)
class JournalLine:
    """A finished shard."""

    shard: str  # file name
    sha256: str
    ids: tuple[str, ...]

    @property
    def rank(self) -> int:
        return shard_rank(self.shard)

    @property
    def number(self) -> int:
        return int(self.shard[:-3].split("-")[2])


def shard_name(rank: int, number: int) -> str:
    """The file name of a rank's shard."""
    return f"shard-{rank}-{number:05d}.h5"


def shard_rank(shard: str) -> int:
    """The rank in a shard's file name."""
    return int(shard.split("-")[1])


def journal_path(folder: Path, rank: int) -> Path:
    """The journal of a rank."""
    return folder / f"journal-{rank}.jsonl"


def failures_path(folder: Path, rank: int) -> Path:
    """The failures of a rank."""
    return folder / (f"failures-{rank}.jsonl" if rank else "failures.jsonl")


def failures_files(folder: Path) -> dict[int, Path]:
    """The failures of every rank that has such, in order of the ranks."""
    found = {path: _FAILURES.fullmatch(path.name) for path in folder.glob("failures*.jsonl")}
    files = {int(match.group(1) or 0): path for path, match in found.items() if match}
    return dict(sorted(files.items()))


def ranks_of(folder: Path) -> list[int]:
    """All ranks that left something in a folder."""
    matches = [_RANKED.fullmatch(path.name) for path in folder.iterdir()]
    ranks = {int(match.group(1) or match.group(2)) for match in matches if match}
    return sorted(ranks | failures_files(folder).keys())


def read_description(folder: Path) -> tuple[dict[str, Any], dict[str, Stream]]:
    """Meta and streams out of `cache.json`. Raises CacheError when the folder is no cache."""
    path = folder / "cache.json"
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CacheError(
            f"{folder}: no feature cache (no cache.json in it); type pipeline extract --help to"
            " make one"
        ) from None
    except (OSError, ValueError) as error:
        raise CacheError(
            f"{path}: cannot be read ({error}); bring the file back from a copy, or extract into"
            " another --out"
        ) from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise CacheError(
            f"{path}: schema is {schema!r}, wanted {SCHEMA}: another version of this program made"
            " it; extract into another --out"
        )
    try:
        streams = {
            str(k): Stream(int(v["width"]), v["dtype"]) for k, v in content["streams"].items()
        }
        meta = dict(content["meta"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CacheError(
            f"{path}: wanted meta and streams of {{width, dtype}} ({error!r}); bring the file back"
            " from a copy, or extract into another --out"
        ) from error
    for name, stream in streams.items():
        if stream.dtype not in DTYPES or stream.width < 1:
            raise CacheError(
                f"{path}: stream {name!r} is {stream}, wanted a width of 1 or more and a dtype of"
                f" {', '.join(DTYPES)}"
            )
    return meta, streams


def read_journals(folder: Path) -> list[JournalLine]:
    """The finished shards of all ranks, by rank and number.

    A last line that a kill cut off is passed over; any other bad line raises CacheError.
    """
    lines = []
    for path in folder.glob("journal-*.jsonl"):
        for number, text in enumerate(_whole_lines(path), 1):
            try:
                lines.append(_journal_line(json.loads(text)))
            except (KeyError, TypeError, ValueError) as error:
                raise CacheError(
                    f"{path}: line {number} is no line of a journal ({error!r}), wanted"
                    ' {"shard": ..., "sha256": ..., "ids": [...]}; bring the file back from a copy,'
                    " or extract into another --out"
                ) from error
    return sorted(lines, key=lambda line: (line.rank, line.number))


def read_failures(
    folder: Path, done: Container[str], wanted: Callable[[int], bool] = lambda rank: True
) -> dict[str, dict[str, str]]:
    """The last failure of each image that is not `done`, of the ranks wanted: id -> line.

    Raises CacheError on a bad line that is not a cut-off last one.
    """
    failures: dict[str, dict[str, str]] = {}
    for rank, path in failures_files(folder).items():
        if not wanted(rank):
            continue
        for number, text in enumerate(_whole_lines(path), 1):
            try:
                line = {str(key): str(value) for key, value in json.loads(text).items()}
                image = line["image_id"]
            except (AttributeError, KeyError, ValueError) as error:
                raise CacheError(
                    f"{path}: line {number} is no failure ({error!r}), wanted"
                    ' {"image_id": ..., "reason": ...}; take the line out'
                ) from error
            if image not in done:
                failures[image] = line
    return failures


def _whole_lines(path: Path) -> list[bytes]:
    """All lines that end; what follows the last line feed was cut off by a kill."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror})") from error


def _journal_line(content: Any) -> JournalLine:
    shard, digest, ids = content["shard"], content["sha256"], content["ids"]
    if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
        raise ValueError(f"shard is {shard!r}")
    if not isinstance(ids, list) or not all(isinstance(image, str) for image in ids):
        raise ValueError("ids is no list of strings")
    return JournalLine(shard, str(digest), tuple(ids))
