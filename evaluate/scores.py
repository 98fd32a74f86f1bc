"""All metrics of the COCO evaluation at once, for one or more results on the same references.

METEOR and SPICE are outside programs and run beside the metrics computed here. One that is
missing or fails takes nothing from the others: its name, the reason and the command that gets it
are in `Scores.unavailable`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from evaluate.bleu import ORDERS, bleu_counts, bleu_of_counts
from evaluate.cider import DocumentFrequency, cider_d, cider_warnings
from evaluate.closing import Closing
from evaluate.errors import EvaluateError
from evaluate.java import find_java, stop_all
from evaluate.java_tokenizer import java_tokenize
from evaluate.meteor import Meteor, additive_stats, meteor_score
from evaluate.meteor_process import Stats
from evaluate.nocaps import domain_scores
from evaluate.pairs import paired
from evaluate.rouge import rouge_l
from evaluate.significance import Summed, mean_of
from evaluate.spice import Spice, SpiceScores
from evaluate.tokenizer import ptb_tokenize

log = logging.getLogger(__name__)

Image = TypeVar("Image", bound=int | str)  # an image's id
Tokenizer = Literal["ptb", "java"]

METRICS = ("bleu", "meteor", "rouge", "cider", "spice")
BLEU = tuple(f"Bleu_{order}" for order in range(1, ORDERS + 1))
COLUMNS = (*BLEU, "METEOR", "ROUGE_L", "CIDEr", "SPICE")  # the order of the papers' tables
METRIC_COLUMNS = {
    "bleu": BLEU,
    "meteor": ("METEOR",),
    "rouge": ("ROUGE_L",),
    "cider": ("CIDEr",),
    "spice": ("SPICE",),
}
_FEW_IMAGES = 100  # below, CIDEr's document frequencies say little
_NAMED = 10  # images spelled out in a warning
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What one set of captions scores. Values are 0 to 1, CIDEr 0 to 10; tables multiply by 100."""

    ids: tuple[int | str, ...]  # the images, in the order of every list below
    corpus: dict[str, float]  # Bleu_1..4, METEOR, ROUGE_L, CIDEr, SPICE: those that were computed
    per_image: dict[str, list[float]]  # the same keys
    details: dict[str, float | None] = field(default_factory=dict)  # SPICE_Object and its like
    domains: dict[str, dict[str, float]] = field(default_factory=dict)  # group -> corpus values
    unavailable: dict[str, str] = field(default_factory=dict)  # column -> why; command
    warnings: list[str] = field(default_factory=list)
    signature: str = ""
    counts: dict[str, list[list[float]]] = field(default_factory=dict)  # additive rows per image

    def to_json(self) -> str:
        """One line of JSON; `from_json` gives back an equal object."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({"schema": _SCHEMA, **plain}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Scores:
        """Read what `to_json` wrote; other keys are left alone.

        Raises EvaluateError when the text is something else.
        """
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise EvaluateError(f"scores are no JSON ({error}); score the results again") from error
        known = list(cls.__dataclass_fields__)
        if (
            not isinstance(plain, dict)
            or plain.get("schema") != _SCHEMA
            or not plain.keys() >= set(known)
        ):
            raise EvaluateError(
                f"scores are not of schema {_SCHEMA} with the keys {', '.join(known)};"
                " score the results again"
            )
        return cls(**{**{name: plain[name] for name in known}, "ids": tuple(plain["ids"])})

    def summed(self) -> list[Summed]:
        """The metrics as functions of sums over images, for intervals and paired tests."""
        found = []
        if "bleu" in self.counts:
            rows = np.array(self.counts["bleu"], dtype=np.float64)  # (N, 10)
            found.append(Summed(columns=BLEU, rows=rows, value=_bleu_of_sums))
        if "meteor" in self.counts:
            rows = np.array(self.counts["meteor"], dtype=np.float64)  # (N, 23)
            found.append(Summed(columns=("METEOR",), rows=rows, value=_meteor_of_sums))
        for column in ("ROUGE_L", "CIDEr", "SPICE"):
            if column in self.per_image:
                found.append(mean_of(column, self.per_image[column]))
        return found


def score(
    results: Mapping[Image, str],
    references: Mapping[Image, Sequence[str]],
    *,
    metrics: Sequence[str] = METRICS,
    tokenizer: Tokenizer = "ptb",
    table: DocumentFrequency | None = None,
) -> Scores:
    """Score raw captions (image id -> caption) against raw references (image id -> captions).

    Both sides must hold the same ids. `table` replaces CIDEr's document frequencies, which are
    otherwise counted over `references`. Raises EvaluateError on ids that do not match, on no
    images at all and on an unknown metric or tokenizer.
    """
    with Scorer(references, metrics=metrics, tokenizer=tokenizer, table=table) as scorer:
        return scorer.score(results)


class Scorer(Closing, Generic[Image]):
    """Scores any number of results against the same references; use as a context manager.

    The references are tokenised once and METEOR's process is started once. `spice_jars` is where
    SPICE finds the CoreNLP jars if not in its own folder.
    """

    def __init__(
        self,
        references: Mapping[Image, Sequence[str]],
        *,
        metrics: Sequence[str] = METRICS,
        tokenizer: Tokenizer = "ptb",
        table: DocumentFrequency | None = None,
        spice_jars: Path | None = None,
    ) -> None:
        _check(metrics, tokenizer, references)
        self.metrics = tuple(metric for metric in METRICS if metric in metrics)
        self.tokenizer = tokenizer
        self.table = table
        self.spice_jars = spice_jars
        with ThreadPoolExecutor(max_workers=1) as pool:
            if "meteor" in metrics:
                pool.submit(find_java)  # it takes as long, and remembers what it found
            texts = iter(self.tokenize([t for captions in references.values() for t in captions]))
        self.references = {
            image: [next(texts) for _ in captions] for image, captions in references.items()
        }
        self._meteor: Meteor | None = None

    def close(self) -> None:
        """End METEOR's process."""
        if self._meteor is not None:
            self._meteor.close()
            self._meteor = None

    def tokens(self, captions: Mapping[Image, str]) -> dict[Image, str]:
        """Tokenised captions, in the order of the references where they are the same images."""
        order = [i for i in self.references if i in captions]
        order += [i for i in captions if i not in self.references]
        texts = self.tokenize([captions[i] for i in order])
        return dict(zip(order, texts, strict=True))

    def score(
        self,
        results: Mapping[Image, str],
        *,
        domains: Mapping[Image, str] | None = None,
    ) -> Scores:
        """Score raw captions of exactly the images of the references.

        With `domains` (image id -> group) every group is also scored as a set of its own. Raises
        EvaluateError on ids that do not match and on an image without a group.
        """
        paired(self.references, results)
        candidates = self.tokens(results)
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="java") as pool:
            jobs = {
                column: pool.submit(job, candidates)
                for metric, column, job in (
                    ("meteor", "METEOR", self._meteor_stats),
                    ("spice", "SPICE", self._spice_scores),
                )
                if metric in self.metrics
            }
            try:
                scores = self._python_metrics(candidates)
                self._collect(scores, jobs)
            except BaseException:
                stop_all()  # or the pool would wait for them to end
                raise
        if domains is not None:
            scores.domains.update(
                domain_scores(scores.summed(), self.references, candidates, domains, self.table)
            )
        scores.warnings.extend(self._warnings(candidates))
        return replace(scores, signature=self._signature(scores.unavailable.keys()))

    def tokenize(self, captions: Sequence[str]) -> list[str]:
        """Tokens of raw captions, joined by blanks, by the tokenizer of this scorer."""
        return ptb_tokenize(captions) if self.tokenizer == "ptb" else java_tokenize(captions)

    def _python_metrics(self, candidates: Mapping[Image, str]) -> Scores:
        scores = Scores(ids=tuple(self.references), corpus={}, per_image={})
        references = self.references
        if "bleu" in self.metrics:
            rows = bleu_counts(references, candidates)  # (N, 10)
            corpus, per_image = bleu_of_counts(rows.sum(axis=0)), bleu_of_counts(rows)
            scores.corpus.update(zip(BLEU, corpus.tolist(), strict=True))
            scores.per_image.update(zip(BLEU, per_image.T.tolist(), strict=True))
            scores.counts["bleu"] = rows.astype(int).tolist()
        if "rouge" in self.metrics:
            scores.corpus["ROUGE_L"], scores.per_image["ROUGE_L"] = rouge_l(references, candidates)
        if "cider" in self.metrics:
            scores.corpus["CIDEr"], scores.per_image["CIDEr"] = cider_d(
                references, candidates, self.table
            )
        return scores

    def _meteor_stats(self, candidates: Mapping[Image, str]) -> list[Stats]:
        if self._meteor is None:
            self._meteor = Meteor()
        return self._meteor.stats(self.references, candidates)

    def _spice_scores(self, candidates: Mapping[Image, str]) -> SpiceScores:
        done = 0

        def told(images: int) -> None:
            nonlocal done
            done += images
            log.info("SPICE: %d of %d images", done, len(self.references))

        return Spice(corenlp=self.spice_jars).score(self.references, candidates, told)

    def _collect(self, scores: Scores, jobs: Mapping[str, Future[Any]]) -> None:
        """Add what the outside programs found, or why they found nothing."""
        for column, job in jobs.items():
            try:
                found = job.result()
            except EvaluateError as error:
                scores.unavailable[column] = str(error)
                continue
            if column == "SPICE":
                scores.corpus[column], scores.per_image[column] = found.corpus, found.per_image
                scores.details.update({f"SPICE_{kind}": f for kind, f in found.sub.items()})
            else:
                rows = additive_stats(found)
                scores.corpus[column] = meteor_score([sum(n) for n in zip(*rows, strict=True)])
                scores.per_image[column] = [meteor_score(row) for row in rows]
                scores.counts["meteor"] = [list(row) for row in rows]

    def _warnings(self, candidates: Mapping[Image, str]) -> list[str]:
        warnings = []
        empty = [image for image, text in candidates.items() if not text.split()]
        if empty:
            warnings.append(f"captions without a word score 0: {_named(empty)}")
        wordless = [i for i, texts in self.references.items() if not all(t.split() for t in texts)]
        if wordless:
            warnings.append(
                f"references without a word lower what their images score: {_named(wordless)}"
            )
        if "cider" in self.metrics and self.table is None:
            known = cider_warnings(self.references)
            images = len(self.references)
            if not known and images < _FEW_IMAGES:
                known = [
                    f"CIDEr weighs words by these {images} images alone; compare it only with"
                    " scores on the same images"
                ]
            warnings += known
        return warnings

    def _signature(self, unavailable: Set[str]) -> str:
        """One line that says how the numbers were made; equal lines, comparable numbers."""
        sizes = [len(texts) for texts in self.references.values()]
        low, high = min(sizes), max(sizes)
        settings = {
            "bleu": "bleu:1-4,closest",
            "meteor": "meteor:1.5,en,norm",
            "rouge": "rouge:L,beta1.2",
            "cider": f"cider:D,n4,s6,{_table_text(self.table, len(sizes))}",
            "spice": "spice:1.0",
        }
        for metric in self.metrics:
            if not unavailable.isdisjoint(METRIC_COLUMNS[metric]):
                settings[metric] = f"{metric}:n/a"
        return "|".join(
            [
                f"images:{len(sizes)}",
                f"refs:{low}" if low == high else f"refs:{low}-{high}",
                f"tok:{_TOKENIZERS[self.tokenizer]}",
                *(settings[metric] for metric in self.metrics),
                f"version:{version('caption-pipeline')}",
            ]
        )


_TOKENIZERS = {"ptb": "ptb3.4.1-python", "java": "ptb3.4.1-java"}


def _named(images: Sequence[int | str]) -> str:
    noun = "image" if len(images) == 1 else "images"
    named = ", ".join(str(image) for image in images[:_NAMED])
    more = f" and {len(images) - _NAMED} more" if len(images) > _NAMED else ""
    return f"{noun} {named}{more}"


def _table_text(table: DocumentFrequency | None, images: int) -> str:
    if table is None:
        return f"df:references({images}),eos:no"
    eos = "no" if table.style.eos is None else "yes"
    return f"df:{table.document}({table.documents:g},{table.sha256[:8]}),eos:{eos}"


def _check(
    metrics: Sequence[str], tokenizer: str, references: Mapping[Image, Sequence[str]]
) -> None:
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown or not metrics:
        raise EvaluateError(f"metrics are {list(metrics)}, wanted some of {', '.join(METRICS)}")
    if tokenizer not in _TOKENIZERS:
        raise EvaluateError(f"tokenizer is {tokenizer!r}, wanted {' or '.join(_TOKENIZERS)}")
    if not references:
        raise EvaluateError("no images to score; give references with one image or more")
    for image, texts in references.items():
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) for t in texts):
            raise EvaluateError(
                f"image {image!r}: references are {texts!r}, wanted a list of one or more strings"
            )


def _bleu_of_sums(sums: np.ndarray, images: int) -> np.ndarray:
    return bleu_of_counts(sums)  # (..., 4)


def _meteor_of_sums(sums: np.ndarray, images: int) -> np.ndarray:
    rows = sums.reshape(-1, sums.shape[-1]).tolist()
    values = np.array([meteor_score(row) for row in rows])  # (rows,)
    return values.reshape(*sums.shape[:-1], 1)  # (..., 1)
