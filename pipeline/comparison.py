"""A comparison of captioners: rows, each trained with several seeds, and a table of them all.

A YAML file (`pipeline/comparisons/`) lists datasets, the pictures and captions to train on, and
rows, the captioners. A row is the dataset's recipe with a few settings of its own, so that loader,
reward and budget are the same for all. Everything that is finished is left alone when it is asked
for again; a row that fails is named, and the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from caption.transformer import count_parameters
from evaluate.scores import METRICS, Scores
from extract.nearest import hint
from pipeline import recipe as recipes
from pipeline.errors import PipelineError, WrongUsage
from pipeline.run_folder import open_run
from pipeline.scenes.write import BOXES, DATASET, IMAGES
from pipeline.steps import (
    eval_line,
    extract_line,
    make_features,
    make_run,
    make_scenes,
    make_scores,
    scenes_line,
    train_line,
)
from pipeline.training import is_finished

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """Features of a dataset's pictures; rows name the set that they read."""

    name: str  # such as `rows` or `pyramid`
    preset: str  # of `pipeline extract`


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Pictures with captions, and how captioners are trained on them."""

    name: str  # the folder's name
    title: str  # the table's heading
    images: int | None = None  # scenes to generate; null: photographs and captions are given
    seed: int = 1  # of the scenes
    size: int = 224  # side of the scenes in pixels
    features: tuple[FeatureSet, ...]  # the first is the default of rows
    recipe: str  # of every row
    overrides: tuple[str, ...] = ()  # of every row


@dataclass(frozen=True, kw_only=True)
class Row:
    """A captioner: what it changes in the dataset's recipe."""

    name: str  # in the table
    folder: str  # of its runs
    features: str | None = None  # the feature set; null: the dataset's first
    overrides: tuple[str, ...] = ()  # settings over those of the dataset
    datasets: tuple[str, ...] = ()  # where it is trained; none named: everywhere


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All of a comparison file."""

    title: str  # the page's first heading
    about: str = ""  # a paragraph below it
    seeds: tuple[int, ...] = (1, 2, 3)
    metrics: tuple[str, ...] = METRICS
    datasets: tuple[Dataset, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What of a comparison is to be done, where and with which additions."""

    out: Path
    captions: Path | None = None  # of the dataset whose photographs are given
    photos: Path | None = None
    datasets: tuple[str, ...] = ()  # none named: those whose pictures are there
    rows: tuple[str, ...] = ()  # folders of rows; none named: all
    seeds: tuple[int, ...] = ()  # none named: the file's
    overlay: str | None = None  # over every recipe, such as `tiny`
    overrides: tuple[str, ...] = ()  # settings over those of every row
    images: int | None = None  # scenes, instead of the file's number
    device: str = "auto"

    @property
    def whole(self) -> bool:
        """Whether nothing of the comparison was left out by choice."""
        return not (self.datasets or self.rows or self.seeds)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run to be: where it is and all that makes it."""

    row: Row
    seed: int
    recipe: str
    overlay: str | None
    overrides: tuple[str, ...]
    features: Path
    captions: Path
    out: Path

    @property
    def lines(self) -> tuple[str, str]:
        """The command lines that make this run and its scores."""
        paths = self.features, self.captions, self.out
        train = train_line(self.recipe, self.overrides, *paths, self.overlay)
        return train, eval_line(self.out)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a row's runs: scores by seed, or why there are none."""

    plans: tuple[Plan, ...]
    scores: dict[int, Scores] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetOutcome:
    """A dataset with its rows' outcomes and the command lines before them."""

    dataset: Dataset
    preparation: tuple[str, ...]
    rows: tuple[Outcome, ...]


def shipped() -> dict[str, Path]:
    """The comparisons that come with the program: name -> file."""
    folder = Path(str(resources.files("pipeline") / "comparisons"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load(name_or_path: str) -> Comparison:
    """A comparison by name or file, with every recipe of it read and checked.

    Raises WrongUsage for whatever is unknown.
    """
    known = shipped()
    path = known.get(name_or_path, Path(name_or_path))
    if not path.is_file():
        raise WrongUsage(f"no comparison or YAML file {name_or_path!r}{hint(name_or_path, known)}")
    with recipes.as_typed():
        found = recipes.from_mapping(Comparison, recipes.read_yaml(path), str(path))
        for dataset in found.datasets:
            for row in rows_of(found, dataset):
                recipes.load(dataset.recipe, [*dataset.overrides, *row.overrides])
                feature_set(dataset, row)
    return found


def rows_of(comparison: Comparison, dataset: Dataset) -> list[Row]:
    """The rows that are trained in a dataset."""
    return [row for row in comparison.rows if not row.datasets or dataset.name in row.datasets]


def feature_set(dataset: Dataset, row: Row) -> FeatureSet:
    """The features that a row reads. Raises PipelineError naming those there are."""
    if row.features is None:
        return dataset.features[0]
    for found in dataset.features:
        if found.name == row.features:
            return found
    names = ", ".join(found.name for found in dataset.features)
    raise PipelineError(
        f"row {row.name}: no features {row.features!r} in dataset {dataset.name}; there are {names}"
    )


def run_comparison(comparison: Comparison, choice: Choice) -> list[DatasetOutcome]:
    """Make what is missing, dataset by dataset, and gather what is there."""
    return [_run_dataset(comparison, dataset, choice) for dataset in _datasets(comparison, choice)]


def _datasets(comparison: Comparison, choice: Choice) -> list[Dataset]:
    names = [dataset.name for dataset in comparison.datasets]
    for name in choice.datasets:
        if name not in names:
            raise WrongUsage(f"no dataset {name!r}{hint(name, names)}")
    for name in choice.rows:
        folders = [row.folder for row in comparison.rows]
        if name not in folders:
            raise WrongUsage(f"no row {name!r}{hint(name, folders)}")
    given = choice.captions is not None and choice.photos is not None
    chosen = []
    for dataset in comparison.datasets:
        if choice.datasets and dataset.name not in choice.datasets:
            continue
        if dataset.images is None and not given:
            if dataset.name in choice.datasets:
                raise WrongUsage(f"{dataset.name} needs --captions FILE and --photos FOLDER")
            log.info("%s left out: it needs --captions FILE and --photos FOLDER", dataset.name)
            continue
        chosen.append(dataset)
    return chosen


def _run_dataset(comparison: Comparison, dataset: Dataset, choice: Choice) -> DatasetOutcome:
    home = choice.out / dataset.name
    if dataset.images is None:
        photos, captions, boxes = choice.photos, choice.captions, None
    else:
        scenes = home / "scenes"
        photos, captions, boxes = scenes / IMAGES, scenes / DATASET, scenes / BOXES
    if photos is None or captions is None:
        raise PipelineError(f"dataset {dataset.name} has no pictures")
    rows = [r for r in rows_of(comparison, dataset) if not choice.rows or r.folder in choice.rows]
    wanted = {feature_set(dataset, row).name: feature_set(dataset, row) for row in rows}
    preparation = []
    if dataset.images is not None:
        images = choice.images or dataset.images
        make_scenes(home / "scenes", images, dataset.seed, dataset.size)
        preparation.append(scenes_line(home / "scenes", images, dataset.seed, dataset.size))
    for one in wanted.values():
        given = boxes if one.preset == "imagenet-regions" else None
        out = home / "features" / one.name
        make_features(photos, one.preset, given, out, choice.device)
        preparation.append(extract_line(photos, one.preset, given, out))
    outcomes = []
    for row in rows:
        plans = [
            Plan(
                row=row,
                seed=seed,
                recipe=dataset.recipe,
                overlay=choice.overlay,
                overrides=(
                    *(*dataset.overrides, *row.overrides, *choice.overrides),
                    f"seed={seed}",
                ),
                features=home / "features" / feature_set(dataset, row).name,
                captions=captions,
                out=home / "runs" / row.folder / f"seed{seed}",
            )
            for seed in choice.seeds or comparison.seeds
        ]
        outcomes.append(_run_row(plans, choice.device, comparison.metrics))
    return DatasetOutcome(dataset=dataset, preparation=tuple(preparation), rows=tuple(outcomes))


def _run_row(plans: Sequence[Plan], device: str, metrics: Sequence[str]) -> Outcome:
    """Train and score a row's runs; one that fails does not stop the others."""
    scores, failures, parameters = {}, {}, None
    for plan in plans:
        try:
            paths = plan.features, plan.captions, plan.out
            make_run(plan.recipe, plan.overrides, *paths, device, plan.overlay)
            scores[plan.seed] = make_scores(plan.out, device, metrics)
            run = open_run(plan.out)
            parameters = count_parameters(run.build(run.vocabulary()))
        except Exception as error:  # such as a GPU out of memory: the other rows need not be
            failures[plan.seed] = f"{error}" or type(error).__name__
            log.error("%s, seed %d: %s", plan.row.name, plan.seed, failures[plan.seed])
            log.debug("where it failed", exc_info=error)
    return Outcome(plans=tuple(plans), scores=scores, failures=failures, parameters=parameters)


def missing_runs(outcomes: Sequence[DatasetOutcome]) -> list[Plan]:
    """The runs that are not finished."""
    return [
        plan
        for outcome in outcomes
        for row in outcome.rows
        for plan in row.plans
        if plan.seed in row.failures or not is_finished(plan.out)
    ]
