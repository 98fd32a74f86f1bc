"""METEOR 1.5 (Denkowski and Lavie, 2014), as the COCO evaluation runs it: `-l en -norm`.

The alignment of words (exact, stem, synonym, paraphrase) is done by the official program in a
process of its own; it answers 23 numbers per image. The score is made of them here, so that no
locale can spoil it.
"""

from __future__ import annotations

import logging
import re
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from evaluate.errors import EvaluateError
from evaluate.java import ENGLISH, Java, find_java, kill, start, was_stopped, wheel_file
from evaluate.pairs import Id, paired
from evaluate.paraphrases import cut_table, meteor_words

log = logging.getLogger(__name__)

Stats = tuple[float, ...]  # 23 numbers, see `meteor_score`

NUMBERS = 23
_WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # exact, stem, synonym, paraphrase
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_LINE_BREAKS = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_SEPARATOR = "|||"
_IMAGES_PER_EXCHANGE = 32
_LAST_LINES = 20
_WHOLE_TABLE_MB = 2048  # of heap, as the official wrapper gives


class Meteor:
    """METEOR of tokenised captions; one Java process as long as the context lasts.

    The process starts at the first `score`. `words` are words to expect beside those of the data
    (a vocabulary, say), so that later calls need no restart with a larger paraphrase table.
    `jar` and `paraphrases` replace METEOR and its table of the installed pycocoevalcap.
    `time_limit` (seconds) bounds each exchange with the process and its start; a process that
    dies or exceeds it is replaced once per exchange. Raises NotAvailable when Java or METEOR is
    missing.
    """

    def __init__(
        self,
        words: Iterable[str] | None = None,
        *,
        java: Java | None = None,
        jar: Path | None = None,
        paraphrases: Path | None = None,
        time_limit: float = 120.0,
        heap_mb: int = 1024,
    ) -> None:
        self._words = meteor_words(words or ())
        self._java = java or find_java()
        self._jar = jar or wheel_file("meteor/meteor-1.5.jar")
        self._source = paraphrases or wheel_file("meteor/data/paraphrase-en.gz")
        self._time_limit = time_limit
        self._heap_mb = heap_mb
        self._table: tuple[Path, set[str]] | None = None
        self._process: _Process | None = None

    def __enter__(self) -> Meteor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the Java process; a later `score` starts another."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def score(
        self, references: Mapping[Id, Sequence[str]], candidates: Mapping[Id, str]
    ) -> tuple[float, list[float]]:
        """METEOR of the corpus (from summed counts, not a mean) and of each image.

        Images in the order of `references`. Raises EvaluateError when the ids differ, there are
        no images, or the program fails twice.
        """
        stats = self.stats(references, candidates)
        sums = [sum(column) for column in zip(*additive_stats(stats), strict=True)]
        return meteor_score(sums), [meteor_score(s) for s in stats]

    def stats(
        self, references: Mapping[Id, Sequence[str]], candidates: Mapping[Id, str]
    ) -> list[Stats]:
        """The 23 numbers of each image, in the order of `references`."""
        pairs = paired(references, candidates)
        if not pairs:
            raise EvaluateError("METEOR needs one image or more, found none to score")
        texts = [[_one_line(t).replace(_SEPARATOR, "") for t in p.references] for p in pairs]
        wanted = [_candidate(p.candidate) for p in pairs]
        self._prepare(meteor_words(t for ts in texts for t in ts), meteor_words(wanted))
        lines = [
            f" {_SEPARATOR} ".join(("SCORE", *ts, candidate))
            for ts, candidate in zip(texts, wanted, strict=True)
        ]
        step = _IMAGES_PER_EXCHANGE
        return [s for i in range(0, len(lines), step) for s in self._exchange(lines[i : i + step])]

    def _prepare(self, base: set[str], extra: set[str]) -> None:
        """See that the table of the next process covers these words."""
        if self._table is not None and base | extra <= self._table[1]:
            return
        known = self._table[1] if self._table is not None else set()
        words = base | extra | known | self._words
        try:
            table = cut_table(self._source, base | self._words, extra | known)
        except OSError as error:
            log.warning("METEOR loads its whole paraphrase table, 1.3 GB of memory: %s", error)
            table = self._source
        self._table = table, words
        self.close()

    def _exchange(self, lines: Sequence[str]) -> list[Stats]:
        try:
            return self._running().ask(lines, self._time_limit)
        except _Died as error:
            stopped = self._process is not None and self._process.was_stopped()
            self.close()
            if stopped:
                raise EvaluateError("METEOR was stopped") from error
            log.warning("METEOR is started again: %s", error)
        try:
            return self._running().ask(lines, self._time_limit)
        except _Died as error:
            self.close()
            raise EvaluateError(
                f"METEOR failed twice on the same captions: {error}; the first of them: {lines[0]}"
            ) from error

    def _running(self) -> _Process:
        if self._process is None:
            table = self._table[0] if self._table is not None else self._source
            self._process = _Process(self._command(table))
            self._process.ask(["SCORE ||| a ||| a"], self._time_limit)
        return self._process

    def _command(self, table: Path) -> list[str]:
        # The table is always named: METEOR cannot find its own in a folder with a blank.
        # Serial collector and one compiler level: the least memory and the quickest start.
        heap = self._heap_mb if table != self._source else max(self._heap_mb, _WHOLE_TABLE_MB)
        java = [str(self._java.path), f"-Xmx{heap}m", *ENGLISH]
        java += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        meteor = ["-", "-", "-stdio", "-l", "en", "-norm", "-a", str(table)]
        return [*java, "-jar", str(self._jar), *meteor]


class _Died(Exception):
    """The Java process is gone, silent or talks nonsense; the message says so."""


class _Process:
    """METEOR listening on its standard input; no call can wait for ever."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._popen = start(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        # Undrained, a full pipe of messages would stop the program for ever.
        self._drain = threading.Thread(target=self._listen, daemon=True)
        self._drain.start()
        self.end = weakref.finalize(self, _end, self._popen, self._drain)

    def ask(self, lines: Sequence[str], time_limit: float) -> list[Stats]:
        """The numbers of each SCORE line; raises _Died when they do not come in time."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        late = threading.Event()
        watch = threading.Timer(time_limit, self._give_up, [late])
        watch.start()
        try:
            self._popen.stdin.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
            self._popen.stdin.flush()
            # The answers to one exchange fit in a pipe, so writing first cannot lock up.
            return [self._numbers(self._popen.stdout.readline()) for _ in lines]
        except OSError as error:
            raise _Died(self._why(f"its input is closed ({error})")) from error
        except _Died as error:
            why = f"no answer within {time_limit:g} s" if late.is_set() else str(error)
            raise _Died(self._why(why)) from error
        finally:
            watch.cancel()

    def was_stopped(self) -> bool:
        """Whether it was ended on purpose."""
        return was_stopped(self._popen)

    def _give_up(self, late: threading.Event) -> None:
        late.set()
        kill(self._popen)

    def _numbers(self, line: bytes) -> Stats:
        text = line.decode("utf-8", "replace")
        if not text:
            raise _Died(f"it ended with {self._popen.wait()}")
        try:
            numbers = tuple(float(n) for n in text.split())
        except ValueError:
            numbers = ()
        if len(numbers) != NUMBERS:
            raise _Died(f"it answered {text.strip()!r}, wanted {NUMBERS} numbers")
        return numbers

    def _listen(self) -> None:
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            self._said.append(line.decode("utf-8", "replace").rstrip())

    def _why(self, what: str) -> str:
        kill(self._popen)
        self._drain.join(timeout=2.0)
        said = "\n".join(self._said)
        return f"{what}; Java's last lines:\n{said}" if said else what


def _end(popen: subprocess.Popen[bytes], drain: threading.Thread) -> None:
    kill(popen)
    popen.wait()
    drain.join(timeout=2.0)
    for pipe in (popen.stdin, popen.stdout, popen.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                log.debug("METEOR ended with unread input")


def meteor_score(stats: Sequence[float]) -> float:
    """METEOR from the 23 numbers of an image, or of a corpus (the sum of `additive_stats`).

    In order: words of candidate and reference, function words of both; for each of the four
    matchers content words and function words matched, candidate and reference alternating;
    chunks; matched words of both.
    """
    length, ref_length, function, ref_function = stats[:4]
    chunks, matched, ref_matched = stats[20:23]
    hits = [0.0, 0.0]
    for matcher, weight in enumerate(_WEIGHTS):
        content, ref_content, by_function, ref_by_function = stats[
            4 + 4 * matcher : 8 + 4 * matcher
        ]
        hits[0] += weight * (_DELTA * content + (1 - _DELTA) * by_function)
        hits[1] += weight * (_DELTA * ref_content + (1 - _DELTA) * ref_by_function)
    precision = _ratio(hits[0], _DELTA * (length - function) + (1 - _DELTA) * function)
    recall = _ratio(hits[1], _DELTA * (ref_length - ref_function) + (1 - _DELTA) * ref_function)
    if precision == 0 or recall == 0:
        return 0.0
    mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
    fragmentation = _chunks(stats) / ((matched + ref_matched) / 2)
    return mean * (1 - _GAMMA * fragmentation**_BETA)


def _chunks(stats: Sequence[float]) -> float:
    """Chunks for the penalty: none where one chunk matches both sides wholly."""
    length, ref_length = stats[:2]
    chunks, matched, ref_matched = stats[20:23]
    whole = matched == length and ref_matched == ref_length and chunks == 1
    return 0.0 if whole else chunks


def additive_stats(stats: Iterable[Stats]) -> list[Stats]:
    """The numbers of images such that those of a set of images are their sum.

    An image matched wholly adds no chunk to its set.
    """
    return [(*s[:20], _chunks(s), *s[21:]) for s in stats]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _one_line(text: str) -> str:
    return _LINE_BREAKS.sub(" ", text).encode("utf-8", "replace").decode("utf-8")


def _candidate(text: str) -> str:
    """As the official wrapper hands it over: no separator, each double blank made one, once."""
    return _one_line(text).replace(_SEPARATOR, "").replace("  ", " ")
