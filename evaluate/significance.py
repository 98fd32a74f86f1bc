"""How sure a score is: bootstrap intervals over images, and a paired test between two systems.

Every metric here is a function of sums over images (`Summed`), so a resample is one matrix
product and the corpus value is computed anew each time, also where it is no mean of images.

Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993), percentile intervals;
Koehn, EMNLP 2004, bootstrap of corpus metrics; Noreen (1989) and Riezler and Maxwell, 2005,
approximate randomisation. Shapes: N images, S statistics of an image, R resamples, K columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evaluate.errors import EvaluateError

RESAMPLES = 1000
LEVEL = 0.95
_CHUNK = 2_000_000  # draws held at once: 16 MB of integers
_EQUAL = 1e-12  # differences this close count as ties


@dataclass(frozen=True, kw_only=True)
class Summed:
    """One or more columns of a table that depend on the images only through sums over them."""

    columns: tuple[str, ...]  # (K)
    rows: np.ndarray  # (N, S) float64: what each image adds
    value: Callable[[np.ndarray, int], np.ndarray]  # sums (..., S), images -> values (..., K)

    def of(self, chosen: np.ndarray) -> dict[str, float]:
        """Column -> value on some of the images; `chosen` is a boolean mask (N,)."""
        values = self.value(self.rows[chosen].sum(axis=0), int(chosen.sum()))  # (K,)
        return dict(zip(self.columns, values.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A percentile interval, in the units of the metric (not times 100)."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Second system minus first: value, interval, two-sided p of "the systems are alike"."""

    value: float
    low: float
    high: float
    p: float


def mean_of(column: str, values: Sequence[float]) -> Summed:
    """A metric whose corpus value is the mean of its image values."""
    rows = np.asarray(values, dtype=np.float64)[:, None]  # (N, 1)
    return Summed(columns=(column,), rows=rows, value=lambda sums, images: sums / images)


def intervals(
    metrics: Sequence[Summed],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """Bootstrap intervals of each column, images drawn with replacement.

    Fewer than two images say nothing about spread: the answer is then empty. CIDEr keeps the
    document frequencies of the whole set in every resample.
    """
    images = _images(metrics)
    if images < 2 or resamples < 1:
        return {}
    drawn = _resampled(metrics, images, resamples, seed)
    return {
        column: Interval(low=low, high=high)
        for column, values in drawn.items()
        for low, high in [_percentiles(values, level)]
    }


def compare(
    first: Sequence[Summed],
    second: Sequence[Summed],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> dict[str, Difference]:
    """Second minus first, for the columns that both have; same images in the same order.

    The interval is a paired bootstrap (both systems on the same drawn images), p is approximate
    randomisation (the systems' outputs for an image change places with probability 1/2), for
    means the sign-flip test. Raises EvaluateError when the numbers of images differ.
    """
    shared = {m.columns for m in second}
    left = [m for m in first if m.columns in shared]
    order = {m.columns: m for m in second}
    right = [order[m.columns] for m in left]
    images = _images([*left, *right])
    if images < 2 or resamples < 1:
        return {}
    before = _resampled(left, images, resamples, seed)
    after = _resampled(right, images, resamples, seed)  # the same seed draws the same images
    chances = _randomised(left, right, images, resamples, seed)
    found = {}
    for a, b in zip(left, right, strict=True):
        everywhere = np.ones(images, dtype=bool)  # (N,)
        here, there = a.of(everywhere), b.of(everywhere)
        for column in a.columns:
            low, high = _percentiles(after[column] - before[column], level)
            found[column] = Difference(
                value=there[column] - here[column], low=low, high=high, p=chances[column]
            )
    return found


def _images(metrics: Sequence[Summed]) -> int:
    counts = {len(metric.rows) for metric in metrics}
    if len(counts) > 1:
        raise EvaluateError(
            f"metrics over {sorted(counts)} images, wanted the same images everywhere;"
            " score both results on the ids they share (--subset)"
        )
    return counts.pop() if counts else 0


def _percentiles(values: np.ndarray, level: float) -> tuple[float, float]:
    edge = 50 * (1 - level)
    low, high = np.percentile(values, [edge, 100 - edge]).tolist()
    return low, high


def _chunks(resamples: int, images: int) -> Iterator[int]:
    size = max(1, _CHUNK // images)
    for start in range(0, resamples, size):
        yield min(size, resamples - start)


def _resampled(
    metrics: Sequence[Summed], images: int, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Column -> its values (R,) on sets of N images drawn with replacement."""
    random = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {c: [] for m in metrics for c in m.columns}
    for size in _chunks(resamples, images):
        drawn = random.integers(0, images, size=(size, images))  # (r, N)
        drawn += np.arange(size)[:, None] * images  # one range of bins per resample
        counts = np.bincount(drawn.ravel(), minlength=size * images)  # (r * N,)
        weights = counts.reshape(size, images).astype(np.float64)  # (r, N)
        for metric in metrics:
            values = metric.value(weights @ metric.rows, images)  # (r, K)
            for index, column in enumerate(metric.columns):
                parts[column].append(values[:, index])
    return {column: np.concatenate(values) for column, values in parts.items()}


def _randomised(
    first: Sequence[Summed], second: Sequence[Summed], images: int, resamples: int, seed: int
) -> dict[str, float]:
    """Column -> share of random exchanges with a difference at least as large as the real one."""
    random = np.random.default_rng(seed)
    reached: dict[str, int] = {c: 0 for m in first for c in m.columns}
    for size in _chunks(resamples, images):
        exchanged = random.integers(0, 2, size=(size, images)).astype(np.float64)  # (r, N)
        for a, b in zip(first, second, strict=True):
            moved = exchanged @ (b.rows - a.rows)  # (r, S)
            one, two = a.rows.sum(axis=0), b.rows.sum(axis=0)  # (S,) each
            actual = np.abs(b.value(two, images) - a.value(one, images))  # (K,)
            other, own = b.value(two - moved, images), a.value(one + moved, images)  # (r, K)
            chance = np.abs(other - own)  # (r, K)
            hits = (chance >= actual - _EQUAL).sum(axis=0)  # (K,)
            for column, count in zip(a.columns, hits.tolist(), strict=True):
                reached[column] += count
    return {column: (count + 1) / (resamples + 1) for column, count in reached.items()}
