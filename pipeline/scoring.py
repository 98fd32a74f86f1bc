"""Results and references to everything that `pipeline eval` shows about them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluate.cider import DocumentFrequency
from evaluate.diversity import Diversity, diversity
from evaluate.errors import EvaluateError
from evaluate.nocaps import DOMAINS
from evaluate.scores import COLUMNS, METRIC_COLUMNS, METRICS, Scorer, Scores, Tokenizer
from evaluate.significance import RESAMPLES, Difference, Interval, compare, intervals
from extract.nearest import nearest
from pipeline.entries import read_json
from pipeline.errors import PipelineError, WrongUsage
from pipeline.files import refuse_inputs, write_text
from pipeline.results import Results, canonical_id, shared_images

log = logging.getLogger(__name__)

_PER_IMAGE = ("results", "image_id", "caption", "references")  # its first columns


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to score."""

    metrics: tuple[str, ...] = METRICS
    tokenizer: Tokenizer = "ptb"
    table: DocumentFrequency | None = None  # document frequencies for CIDEr; None: references
    spice_jars: Path | None = None  # folder of the CoreNLP jars; None: where setup puts them
    resamples: int = RESAMPLES  # 0: no intervals and no paired test
    seed: int = 0
    subset: bool = False  # score the images that all files share
    typed: tuple[str, ...] = ()  # further options of the command line, for messages to repeat

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table, in the papers' order."""
        chosen = {column for metric in self.metrics for column in METRIC_COLUMNS[metric]}
        return tuple(column for column in COLUMNS if column in chosen)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Captions to be scored, under the name that the tables give them."""

    name: str
    results: Results
    nbest: Mapping[str, Sequence[str]] | None = None  # raw captions per image, for mBLEU
    training: Collection[str] | None = None  # raw training captions, for novelty
    scores_path: Path | None = None  # where the scores are to be kept
    constraints: Mapping[str, Any] | None = None  # that the captions were decoded with
    decoding: Mapping[str, Any] | None = None  # how the captions were decoded
    remarks: tuple[str, ...] = ()  # about the decoding


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One source and what was found about it."""

    source: Source
    scores: Scores
    intervals: dict[str, Interval]
    diversity: Diversity
    basis: dict[str, str | None]  # sha256 of the captions, the references, the domains

    @property
    def warnings(self) -> list[str]:
        return [*self.source.remarks, *self.scores.warnings, *self.diversity.warnings]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the values of single images, as plain values."""
        scores = self.scores
        return {
            "name": self.source.name,
            "file": str(self.source.results.path),
            "corpus": scores.corpus,
            "intervals": {column: asdict(i) for column, i in self.intervals.items()},
            "details": scores.details,
            "domains": scores.domains,
            "diversity": self.diversity.to_dict(),
            "unavailable": scores.unavailable,
            "warnings": self.warnings,
            "constraints": self.source.constraints,
            "decoding": self.source.decoding,
            "signature": scores.signature,
        }


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Sources scored on the same images, and each compared with the first."""

    references: Path
    images: int
    scored: list[Scored]
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "references": str(self.references),
            "images": self.images,
            "results": [scored.to_dict() for scored in self.scored],
            "differences": {
                name: {column: asdict(d) for column, d in found.items()}
                for name, found in self.differences.items()
            },
        }


def evaluate(
    sources: Sequence[Source],
    references: Mapping[str, Sequence[str]],
    settings: Settings,
    *,
    references_path: Path,
    domains: Mapping[str, str] | None = None,
) -> Evaluation:
    """Score every source on the same images.

    Raises PipelineError when ids do not match (see `shared_images`), EvaluateError when none of
    the metrics asked for could be computed.
    """
    images = shared_images(
        references,
        [source.results for source in sources],
        source=references_path,
        subset=settings.subset,
        typed=settings.typed,
    )
    scored = []
    with Scorer(
        {image: references[image] for image in images},
        metrics=settings.metrics,
        tokenizer=settings.tokenizer,
        table=settings.table,
        spice_jars=settings.spice_jars,
    ) as scorer:
        known: dict[int, list[str]] = {}  # sources may share one set of training captions
        for source in sources:
            training = source.training
            if training is not None and id(training) not in known:
                known[id(training)] = scorer.tokenize(sorted(training))
            scored.append(
                _scored(source, images, scorer, settings, domains, known.get(id(training)))
            )
    first = scored[0]
    differences = {
        f"{other.source.name} - {first.source.name}": compare(
            first.scores.summed(),
            other.scores.summed(),
            resamples=settings.resamples,
            seed=settings.seed,
        )
        for other in scored[1:]
        if settings.resamples
    }
    return Evaluation(
        references=references_path, images=len(images), scored=scored, differences=differences
    )


def _scored(
    source: Source,
    images: Sequence[str],
    scorer: Scorer[str],
    settings: Settings,
    domains: Mapping[str, str] | None,
    training: Collection[str] | None,
) -> Scored:
    captions = {image: source.results.captions[image] for image in images}
    scores = scorer.score(captions, domains=domains)
    if not scores.corpus:
        reasons = "; ".join(f"{column}: {why}" for column, why in scores.unavailable.items())
        raise EvaluateError(f"none of the metrics asked for is available: {reasons}")
    nbest = None
    if source.nbest is not None:
        nbest = {i: scorer.tokenize(source.nbest[i]) for i in images if i in source.nbest}
    return Scored(
        source=source,
        scores=scores,
        intervals=intervals(scores.summed(), resamples=settings.resamples, seed=settings.seed),
        diversity=diversity(scorer.tokens(captions), training=training, nbest=nbest),
        basis={
            "captions": _sha256(captions),
            "references": _sha256(scorer.references),
            "domains": None if domains is None else _sha256({i: domains[i] for i in images}),
        },
    )


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_per_image(path: Path, inputs: Sequence[Path]) -> None:
    """Raise WrongUsage when the CSV would take the place of an input or of another kind of file."""
    refuse_inputs(path, inputs, "--per-image")
    if not path.exists():
        return
    begin = ",".join(_PER_IMAGE).encode()
    if not path.is_file() or not path.read_bytes().startswith(begin):
        raise WrongUsage(
            f"--per-image {path} is there and holds no scores of an earlier command; give another"
            " name, or remove it"
        )


def write_per_image(path: Path, evaluation: Evaluation, references: Mapping[str, Any]) -> None:
    """A CSV of one line per image and source: caption, number of references, every metric."""
    columns = [c for c in COLUMNS if any(c in s.scores.per_image for s in evaluation.scored)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*_PER_IMAGE, *columns])
    for scored in evaluation.scored:
        results, per_image = scored.source.results, scored.scores.per_image
        for index, image in enumerate(scored.scores.ids):
            values = [per_image[c][index] if c in per_image else "" for c in columns]
            head = [scored.source.name, results.given[str(image)], results.captions[str(image)]]
            writer.writerow([*head, len(references[str(image)]), *values])
    write_text(path, buffer.getvalue())


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names for rows: file names without suffix, folders before them where names clash."""
    whole = [path.resolve() for path in paths]
    names = [path.name if path.is_dir() else _stem(path) for path in whole]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}/{name}" for path, name in zip(whole, names, strict=True)]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return names


def _stem(path: Path) -> str:
    """`a` of `a.json` and of `a.json.gz`."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def read_domains(path: Path) -> dict[str, str]:
    """Canonical id -> domain, of `{"id": "in-domain", ...}` or of nocaps' image info JSON."""
    wanted = 'wanted {"image id": "in-domain", ...} or nocaps\' image info'
    content = read_json(path, wanted)
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        images = [image for image in content["images"] if isinstance(image, dict)]
        content = {image.get("id"): image.get("domain") for image in images}
    if not isinstance(content, dict) or not content:
        raise PipelineError(f"{path}: no domains, {wanted}")
    for image, domain in content.items():
        if not isinstance(image, int | str) or not isinstance(domain, str) or not domain:
            raise PipelineError(
                f"{path}: image {image!r} has the domain {domain!r}, wanted a name as in-domain"
            )
    for name in dict.fromkeys(content.values()):
        near = nearest(name, DOMAINS, cutoff=0.8)
        if near is not None and name not in DOMAINS:
            log.warning("%s: the domain %r is none of nocaps; did you mean %r?", path, name, near)
    return {canonical_id(image): domain for image, domain in content.items()}
