"""SPICE 1.0 (Anderson et al., ECCV 2016): F1 over the tuples of scene graphs.

The official program runs in a process of its own, on Java 8 to 25. On today's Java it needs six
packages opened to its cache, and a script engine to lay out its answer (see `java_src`). Parsed
captions are kept in a cache outside the installation; where that cache fails, SPICE runs without.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.corenlp import VERSION, find_corenlp
from evaluate.errors import EvaluateError
from evaluate.java import ENGLISH, Java, find_java, heap_mb, kill, start, was_stopped, wheel_file
from evaluate.java_src.build import JAR
from evaluate.pairs import Id, Pair, paired
from evaluate.paths import cache_dir

log = logging.getLogger(__name__)

# The kinds of tuples that SPICE also scores by themselves, by its own names
KINDS = ("Object", "Attribute", "Relation", "Color", "Cardinality", "Size")
_OPENED = ("java.lang", "java.math", "java.util", "java.util.concurrent", "java.net", "java.text")
_MAIN = ("captionpipeline.Guarded", "edu.anu.spice.SpiceScorer")
_IMAGES_PER_RUN = 2000  # what a killed run can lose, and how often progress is told
_TRIAL = {"trial": ["a brown dog runs on the grass"]}, {"trial": "a brown dog on grass"}
_TRIAL_SCORE, _TRIAL_HEAP_MB = 0.75, 1536
_CACHE_SCHEMA = f"corenlp-{VERSION}"
_LAST_LINES = 20
# Java's notices and CoreNLP's progress: no part of an error
_CHATTER = re.compile(
    r"^(WARNING: |\[main\] INFO|Picked up |Loading classifier|Initiating |Parsing |\s*$)"
)
_MEMORY = re.compile(r"OutOfMemoryError|ran out of memory", re.IGNORECASE)
_UNPARSED = re.compile(r"Parsing of sentence failed|unable to parse", re.IGNORECASE)

Detail = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SpiceScores:
    """SPICE of a corpus and of each image.

    `corpus` is the mean of `per_image`. `sub` holds the mean F1 over tuples of one kind, of the
    images that have such tuples (None where none has). `details` is the program's own answer:
    per image, for All and each kind, precision `pr`, recall `re`, `f` (None where undefined) and
    the counts `tp`, `fp`, `fn`.
    """

    corpus: float
    per_image: list[float]
    sub: dict[str, float | None]
    details: list[Detail]


class Spice:
    """SPICE of tokenised captions.

    `corenlp` is the folder of the CoreNLP jars (default: see `corenlp_folder`), `cache` the folder
    of parsed captions (None: the user's cache folder; `use_cache=False`: none), `heap` the Java
    heap in MB (default: by the machine's memory), `time_limit` seconds for 2,000 images.
    Raises NotAvailable when Java, SPICE or CoreNLP is missing.
    """

    def __init__(
        self,
        *,
        corenlp: Path | None = None,
        java: Java | None = None,
        threads: int | None = None,
        heap: int | None = None,
        cache: Path | None = None,
        use_cache: bool = True,
        time_limit: float | None = None,
    ) -> None:
        self._java = java or find_java()
        self._jar = wheel_file("spice/spice-1.0.jar")
        self._libraries = sorted(wheel_file("spice/lib").glob("*.jar"))
        self._corenlp = find_corenlp(corenlp)
        self._threads = threads or os.cpu_count() or 1
        self._heap = heap or heap_mb()
        self._cache_folder = cache
        self._use_cache = use_cache and _cache_library_exists()
        self._time_limit = time_limit

    def score(
        self,
        references: Mapping[Id, Sequence[str]],
        candidates: Mapping[Id, str],
        on_done: Callable[[int], None] | None = None,
    ) -> SpiceScores:
        """Score each candidate against its image's references, in the order of `references`.

        `on_done(n)` is called whenever n more images are scored. Raises EvaluateError when the
        ids differ, there are no images, or the program fails (with Java's last lines).
        """
        pairs = paired(references, candidates)
        if not pairs:
            raise EvaluateError("SPICE needs one image or more, found none to score")
        details: list[Detail] = []
        for first in range(0, len(pairs), _IMAGES_PER_RUN):
            part = pairs[first : first + _IMAGES_PER_RUN]
            try:
                details += self._run(part)
            except OSError as error:
                raise EvaluateError(
                    f"SPICE cannot write its temporary files ({error}); name another folder for"
                    " them by TMPDIR"
                ) from error
            if on_done is not None:
                on_done(len(part))
        return summary(details)

    def _run(self, pairs: Sequence[Pair]) -> list[Detail]:
        """Score some images; once more with one thread when several ran out of memory."""
        try:
            return self._with_or_without_cache(pairs, self._threads)
        except _Failed as error:
            if not error.memory or self._threads == 1:
                raise self._error(error) from error
            log.warning("SPICE ran out of memory with %d threads, tries with one", self._threads)
        try:
            return self._with_or_without_cache(pairs, 1)
        except _Failed as error:
            raise self._error(error) from error

    def _with_or_without_cache(self, pairs: Sequence[Pair], threads: int) -> list[Detail]:
        if not self._use_cache:
            return self._process(pairs, None, threads)
        folder = (self._cache_folder or cache_dir("spice")) / _CACHE_SCHEMA
        try:
            return self._process(pairs, folder, threads)
        except _Failed as error:
            if error.memory:
                # Captions that found no memory were parsed badly, and are in the cache now.
                shutil.rmtree(folder, ignore_errors=True)
                raise
            log.warning("SPICE failed with its cache %s, runs without it: %s", folder, error.short)
        return self._process(pairs, None, threads)

    def _error(self, failed: _Failed) -> EvaluateError:
        if failed.memory:
            return EvaluateError(
                f"SPICE ran out of memory with a Java heap of {self._heap} MB;"
                f" set PIPELINE_JAVA_HEAP (in MB) higher, now {self._heap}"
            )
        return EvaluateError(
            f"SPICE failed: {failed}; {self._java.path} is Java "
            f"{self._java.version_text}; check it all with: pipeline doctor"
        )

    def _process(self, pairs: Sequence[Pair], cache: Path | None, threads: int) -> list[Detail]:
        with tempfile.TemporaryDirectory(prefix="spice-") as name:
            folder = Path(name)
            images = [
                {
                    "image_id": k,
                    "test": _utf8(p.candidate),
                    "refs": [_utf8(r) for r in p.references],
                }
                for k, p in enumerate(pairs)
            ]
            # ASCII, since Java 8 to 17 read files in the machine's own encoding.
            (folder / "captions.json").write_text(json.dumps(images), "ascii")
            if cache is not None:
                try:
                    cache.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise _Failed(f"{cache} cannot be made ({error})", "") from error
            self._call(self._command(folder, cache, threads), folder)
            return _answer(folder / "scores.json", len(pairs))

    def _call(self, command: Sequence[str], folder: Path) -> None:
        said = folder / "stderr.txt"
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
        with open(said, "wb") as stderr:
            # The open input keeps the program running, see `java_src/Guarded.java`.
            popen = start(command, stdin=pipe, stdout=quiet, stderr=stderr, cwd=folder)
        try:
            code = popen.wait(self._time_limit)
            why = f"it ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            why = f"no answer within {self._time_limit:g} s"
        finally:
            kill(popen)
            popen.wait()
            if popen.stdin is not None:
                popen.stdin.close()
        if was_stopped(popen):
            raise EvaluateError("SPICE was stopped")
        text = said.read_text("utf-8", "replace")
        if why or _MEMORY.search(text):
            raise _Failed(why or "it ran out of memory", text)
        if _UNPARSED.search(text):
            log.warning("SPICE could not parse some captions:\n%s", _last_lines(text))

    def _command(self, folder: Path, cache: Path | None, threads: int) -> list[str]:
        java = [str(self._java.path), f"-Xmx{self._heap}m", *ENGLISH, *_java_flags(self._java)]
        # Whatever Java leaves behind (an unpacked library, a crash report) goes with the folder.
        java += [f"-Djava.io.tmpdir={folder}", f"-XX:ErrorFile={folder / 'crash.log'}"]
        jars = [JAR, self._jar, *self._libraries, self._corenlp.code, self._corenlp.models]
        spice = [*_MAIN, "captions.json", "-out", "scores.json"]
        spice += ["-subset", "-silent", "-threads", str(threads)]
        if cache is not None:
            spice += ["-cache", str(cache.resolve())]
        return [*java, "-cp", os.pathsep.join(map(str, jars)), *spice]


class _Failed(Exception):
    """SPICE ended without an answer."""

    def __init__(self, why: str, said: str) -> None:
        lines = _last_lines(said)
        super().__init__(f"{why}; Java's last lines:\n{lines}" if lines else why)
        self.memory = bool(_MEMORY.search(said))
        self.short = ": ".join([why, *lines.splitlines()[:1]])


def try_spice(corenlp: Path | None = None, cache: Path | None = None) -> float:
    """SPICE of one short caption, to see that it runs; without `cache` no parse is kept.

    Raises EvaluateError when it does not run or gives another score than it should.
    """
    spice = Spice(
        corenlp=corenlp,
        cache=cache,
        use_cache=cache is not None,
        heap=min(heap_mb(), _TRIAL_HEAP_MB),
    )
    score = spice.score(*_TRIAL).corpus
    if score != _TRIAL_SCORE:
        raise EvaluateError(f"SPICE gives {score} for a trial caption, wanted {_TRIAL_SCORE}")
    return score


def summary(details: Sequence[Detail]) -> SpiceScores:
    """Corpus and sub-scores from the program's answers, one per image."""
    per_image = [float(d["All"]["f"] or 0.0) for d in details]
    sub: dict[str, float | None] = {}
    for kind in KINDS:
        known = [d[kind]["f"] for d in details if d[kind]["f"] is not None]
        sub[kind] = sum(known) / len(known) if known else None
    return SpiceScores(sum(per_image) / len(per_image), per_image, sub, list(details))


def _answer(path: Path, images: int) -> list[Detail]:
    try:
        answer = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _Failed(f"its answer cannot be read ({error})", "") from error
    if [item["image_id"] for item in answer] != list(range(images)):
        raise _Failed(f"it answered for {len(answer)} images, wanted {images}", "")
    return [item["scores"] for item in answer]


def _java_flags(java: Java) -> list[str]:
    """What SPICE's cache needs on a Java with modules, and what silences newer ones."""
    flags = []
    if java.version >= 9:
        flags += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    if java.version >= 22:
        flags.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 23:
        flags.append("--sun-misc-unsafe-memory-access=allow")
    return flags


def _cache_library_exists() -> bool:
    """SPICE brings its cache's library for x86-64 only."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if not _CHATTER.match(line)]
    return "\n".join(lines[-_LAST_LINES:])


def _utf8(text: str) -> str:
    """The text without halves of characters, which JSON would carry but no file can."""
    return text.encode("utf-8", "replace").decode("utf-8")
