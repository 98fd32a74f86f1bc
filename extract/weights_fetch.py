"""Downloads of checkpoints that go on where they stopped."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from extract.durable import write_text
from extract.errors import ExtractError, WeightsError
from extract.weights import Weights, check, keep

_CHUNK = 1 << 20  # bytes
_SECONDS = 60.0  # without a byte


def fetch(
    entry: Weights,
    on_bytes: Callable[[int, int | None], None] = lambda n, t: None,
    *,
    replace: bool = False,
) -> Path:
    """Download a checkpoint; returns where it is kept.

    What is there already is checked and stays, unless `replace` is on.

    The part that a stopped download left is gone on with, if the server still has the same file.
    `on_bytes` hears how many bytes are there, and of how many, if that is known. Raises
    ExtractError saying what to do by hand when the file cannot be had.
    """
    if entry.path.is_file() and not replace:
        try:
            check(entry, entry.path, str(entry.path))
        except WeightsError as error:
            raise WeightsError(f"{error}; {entry.to_replace}") from error
        return entry.path
    if entry.url is None:
        raise ExtractError(f"{entry.name} has no address to download from; {entry.by_hand}")
    part = entry.path.with_name(f"{entry.file}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        _download(entry, entry.url, part, on_bytes)
        mark = _mark(part)
        try:
            kept = keep(entry, part, entry.url, check(entry, part, entry.url))
        except ExtractError:
            part.unlink(missing_ok=True)  # another file: nothing to go on with
            mark.unlink(missing_ok=True)
            raise
        mark.unlink(missing_ok=True)
        return kept
    except urllib.error.HTTPError as error:
        error.close()
        what = f"the server says {error.code} {error.reason}"
        raise ExtractError(f"{entry.url}: {what}; {entry.by_hand}") from error
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise ExtractError(
            f"{entry.url}: cannot be downloaded ({reason}); the same command goes on where it"
            f" stopped; without a network {entry.by_hand}"
        ) from error
    except OSError as error:
        raise ExtractError(
            f"{part}: cannot be written ({error.strerror or error}); make room, or name another"
            " data folder by XDG_DATA_HOME"
        ) from error


def _download(
    entry: Weights, url: str, part: Path, on_bytes: Callable[[int, int | None], None]
) -> None:
    """Bring the part up to the whole file. Raises what urllib raises, and ExtractError."""
    have, version = _had(part, url)
    request = urllib.request.Request(url, headers={"User-Agent": "caption-pipeline"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", version)
    try:
        answer = urllib.request.urlopen(request, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        error.close()
        if error.headers.get("Content-Range") != f"bytes */{have}":  # else the part is whole
            part.unlink()
            _download(entry, url, part, on_bytes)
        return
    with answer as response:
        if response.headers.get_content_type() == "text/html":
            raise ExtractError(f"{url}: gives a web page, not a file; {entry.by_hand}")
        if response.status != 206 or _start(response) != have:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        write_text(_mark(part), json.dumps({"url": url, "version": version}))
        with part.open("ab" if have else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                on_bytes(have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have != total:
        raise HTTPException(f"ended after {have:,} of {total:,} bytes")


def _mark(part: Path) -> Path:
    """The file that tells of which version a part is."""
    return part.with_name(f"{part.name}.json")


def _had(part: Path, url: str) -> tuple[int, str]:
    """Bytes of an earlier download and the version they are of; 0 where they are of no use."""
    try:
        mark = json.loads(_mark(part).read_text(encoding="utf-8"))
        have = part.stat().st_size
    except (OSError, ValueError):
        return 0, ""
    version = mark.get("version", "")
    # A weak tag promises no equal bytes, so no server goes on by it.
    usable = mark.get("url") == url and version and not version.startswith("W/")
    return (have, version) if usable else (0, "")


def _start(response: HTTPResponse) -> int | None:
    """The first byte of a partial answer, as in `bytes 100-199/200`."""
    given = (response.headers.get("Content-Range") or "").removeprefix("bytes ").split("-")[0]
    return int(given) if given.isdecimal() else None
