"""METEOR 1.5 (Denkowski and Lavie, 2014), as the COCO evaluation runs it: `-l en -norm`.

The alignment of words (exact, stem, synonym, paraphrase) is done by the official classes in a
process of its own (`java_src/MeteorServer.java`); it answers 23 numbers per image. The score is
made of them here, so that no locale can spoil it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from evaluate.closing import Closing
from evaluate.errors import EvaluateError
from evaluate.java import ENGLISH, Java, find_java, wheel_file
from evaluate.java_src.build import JAR
from evaluate.meteor_process import Server, Stats
from evaluate.pairs import Id, paired
from evaluate.paraphrases import SEPARATOR, cut_table

log = logging.getLogger(__name__)

_WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # exact, stem, synonym, paraphrase
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_LINE_BREAKS = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_WHOLE_TABLE_MB = 2048  # of heap, as the official wrapper gives


class Meteor(Closing):
    """METEOR of tokenised captions; a Java process as long as the context lasts.

    The process starts at the first `score`, and anew for captions that its table was not cut for.
    `jar` and `paraphrases` replace METEOR and its table of the installed pycocoevalcap.
    `time_limit` (seconds) bounds each exchange with the process and its start; one that dies or
    exceeds it is replaced once per exchange. Raises NotAvailable when Java or METEOR is
    missing.
    """

    def __init__(
        self,
        *,
        java: Java | None = None,
        jar: Path | None = None,
        paraphrases: Path | None = None,
        time_limit: float = 300.0,
        heap_mb: int = 1024,
    ) -> None:
        self._java = java or find_java()
        self._jar = jar or wheel_file("meteor/meteor-1.5.jar")
        self._source = paraphrases or wheel_file("meteor/data/paraphrase-en.gz")
        self._heap_mb = heap_mb
        self._table: Path | None = None
        self._time_limit = time_limit
        self._references: set[str] = set()  # the captions that the table was cut for
        self._candidates: set[str] = set()
        self._server = Server(time_limit)

    def close(self) -> None:
        """End the Java process; a later `score` starts another."""
        self._server.close()

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
        texts = [
            [*(_one_line(t).replace(SEPARATOR, "") for t in p.references), _candidate(p.candidate)]
            for p in pairs
        ]
        self._prepare({t for ts in texts for t in ts[:-1]}, {ts[-1] for ts in texts})
        return self._server.stats(self._command(), [f" {SEPARATOR} ".join(ts) for ts in texts])

    def _prepare(self, references: set[str], candidates: set[str]) -> None:
        """See that the table of the next process covers these captions."""
        if references <= self._references and candidates <= self._candidates:
            return
        sides = references | self._references, candidates | self._candidates
        try:
            self._table = cut_table(self._program(), self._source, *sides, self._time_limit)
        except OSError as error:
            log.warning("METEOR loads its whole paraphrase table, 1.3 GB of memory: %s", error)
            self._table = self._source
        self._references, self._candidates = sides
        self.close()

    def _command(self) -> list[str]:
        table = self._table or self._source
        heap = self._heap_mb if table != self._source else max(self._heap_mb, _WHOLE_TABLE_MB)
        return [*self._program(heap), "captionpipeline.MeteorServer", str(table)]

    def _program(self, heap_mb: int = 256) -> list[str]:
        """Java for a class of ours that uses METEOR's."""
        # Serial collector, few young objects and one compiler level: the least memory and the
        # quickest start.
        options = [f"-Xmx{heap_mb}m", "-Xms64m", "-Xmn16m", *ENGLISH]
        options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [str(self._java.path), *options, "-cp", os.pathsep.join([str(JAR), str(self._jar)])]


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
    return _one_line(text).replace(SEPARATOR, "").replace("  ", " ")
