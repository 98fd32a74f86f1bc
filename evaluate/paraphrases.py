"""METEOR's paraphrase table cut down to the references and candidates at hand.

METEOR's table holds 5.27 million phrase pairs, and loading them is nearly all of its start-up
time and memory. A pair can match only where one of its phrases stands in a reference and the
other in a candidate, so these pairs give the same scores: one in a hundred. Cut tables are kept
in the cache folder, outside the installation.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from evaluate.java import run
from evaluate.paths import cache_dir, replacing

log = logging.getLogger(__name__)

SEPARATOR = "|||"  # of captions of one line
_KEPT = 20  # cut tables kept in the cache


def cut_table(
    command: Sequence[str],
    source: Path,
    references: Collection[str],
    candidates: Collection[str],
    time_limit: float,
) -> Path:
    """The table `source` cut to reference and candidate captions; cached by both.

    `command` starts a class of ours with METEOR's beside it. Captions are single lines without
    the separator `|||`. Raises EvaluateError when the program fails or exceeds `time_limit`
    (seconds), OSError when the cut table cannot be written; what is written is written whole or
    not at all.
    """
    folder, stat = cache_dir("meteor"), source.stat()
    sides = [*sorted(set(references)), SEPARATOR, *sorted(set(candidates))]
    text = "\n".join(sides).encode("utf-8", "replace")
    stamp = f"{stat.st_size} {stat.st_mtime_ns}\n".encode()
    table = folder / f"{hashlib.sha256(stamp + text).hexdigest()[:24]}.gz"
    if table.exists():
        _touch(table)
        return table
    log.debug("cutting %s", source)
    cutter = [*command, "captionpipeline.CutTable", str(source)]
    with replacing(table) as temporary:
        temporary.write_bytes(run("METEOR's table cutter", cutter, text, time_limit))
    _tidy(folder)
    return table


def _tidy(folder: Path) -> None:
    """Drop the tables that are long unused."""
    for table in sorted(folder.glob("*.gz"), key=_age)[_KEPT:]:
        table.unlink(missing_ok=True)


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
