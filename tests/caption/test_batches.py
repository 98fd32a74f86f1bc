"""What is drawn for training: anew in each epoch, and the same whenever that epoch is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from caption.batches import Batches, Example, FeatureSource
from caption.data import CaptionedImage, names_in
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


def test_images_go_by_their_files_where_ids_are_other_numbers(
    caches: tuple[FeatureCache, FeatureCache], caplog: pytest.LogCaptureFixture
) -> None:
    """As labelling programs number them: 1, 2, 3 .. of 1.jpg, 10.jpg, 2.jpg .."""
    caplog.set_level("INFO")
    numbered = [CaptionedImage(image_id="1", filename="toy4.jpg")]
    assert names_in(caches[0], numbered) == {"1": "toy4"} and not caplog.text
    crossed = [
        CaptionedImage(image_id="toy2", filename="sub/toy3.png"),
        CaptionedImage(image_id="toy5", filename="toy5.jpg"),
        CaptionedImage(image_id="toy6", filename="elsewhere.jpg"),
        CaptionedImage(image_id="toy7"),
    ]
    assert names_in(caches[0], crossed) == {"toy2": "toy3"}
    assert "file names, not by ids" in caplog.text
    crossed.append(CaptionedImage(image_id="toy3", filename="gone.jpg"))
    assert names_in(caches[0], crossed)["toy3"] == "gone", "not the photograph of another image"
    source = FeatureSource(caches[0], [STREAM], names={"toy2": "toy3"})
    rows = [s.features([i]).rows[STREAM] for s, i in ((source, "toy2"), (source, "toy3"))]
    assert rows[0].equal(rows[1])


def test_without_views_and_hidden_rows_epochs_show_the_same(
    caches: tuple[FeatureCache, FeatureCache],
) -> None:
    source = FeatureSource(caches[0], [STREAM])
    assert drawn(source, 0) == drawn(source, 1)
