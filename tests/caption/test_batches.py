"""What is drawn for training: anew in each epoch, and the same whenever that epoch is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from caption.batches import Batches, Example, FeatureSource
from extract.cache import FeatureCache
from tests.caption.toy import write_toy

IMAGES = 12
STREAM = "pyramid_low"  # four rows of each image


@pytest.fixture
def caches(tmp_path: Path) -> tuple[FeatureCache, FeatureCache]:
    """The toy's features and those of another view."""
    seen, _ = write_toy(tmp_path / "seen", images=IMAGES)
    view, _ = write_toy(tmp_path / "view", images=IMAGES, seed=9, view="mirrored")
    return FeatureCache(seen), FeatureCache(view)


def drawn(source: FeatureSource, epoch: int, start: int = 0) -> dict[str, tuple[object, object]]:
    """Rows and mask of each image, in batches of one: no image's draw hangs on the others'."""
    examples = [Example(image_id=f"toy{n}", captions=("a dog",)) for n in range(IMAGES)]
    batches = Batches(examples, source, None, images=1, captions=1, max_words=5, seed=3, stage="xe")
    return {
        batch.ids[0]: (batch.features.rows[STREAM].tolist(), batch.features.mask[STREAM].tolist())
        for batch in batches.epoch(epoch, start)
    }


@pytest.mark.parametrize("what", ["views", "hidden rows"])
def test_what_is_drawn_is_drawn_anew_in_each_epoch(
    caches: tuple[FeatureCache, FeatureCache], what: str
) -> None:
    cache, view = caches
    source = (
        FeatureSource(cache, [STREAM], views=[view])
        if what == "views"
        else FeatureSource(cache, [STREAM], hidden_rows=0.5)
    )
    first, second = drawn(source, 0), drawn(source, 1)
    other = [image for image in first if first[image] != second[image]]
    assert 0 < len(other) < IMAGES == len(first)
    assert drawn(source, 0) == first and drawn(source, 1) == second
    rest = drawn(source, 1, start=4)  # as a resumed run goes on
    assert len(rest) == IMAGES - 4 and all(second[image] == seen for image, seen in rest.items())


def test_without_views_and_hidden_rows_epochs_show_the_same(
    caches: tuple[FeatureCache, FeatureCache],
) -> None:
    source = FeatureSource(caches[0], [STREAM])
    assert drawn(source, 0) == drawn(source, 1)
