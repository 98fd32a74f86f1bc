"""All awkward files: extracted or listed with a reason, exported, and back again unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from extract.cache import FeatureCache
from extract.cache_export import export_features
from extract.cache_import import import_features
from extract.cache_verify import verify
from extract.extractor import Extractor
from extract.formats import registry
from extract.presets import Preset
from extract.run import extract, plan
from extract.sources import find_sources

pytestmark = pytest.mark.usefixtures("quick_sync")


def test_awkward_files_and_exports(shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "data" / "awkward" / "files"
    sources = find_sources([folder], relative_ids=True)  # two differ in their suffix only
    assert len(sources) == len(list(folder.iterdir()))
    extractor = Extractor("small", Preset(size=64, batch=4), "cpu", None)
    planned = plan(sources, extractor, tmp_path / "cache")
    summary = extract(sources, extractor, tmp_path / "cache")
    failed = {failure.source.image_id: failure for failure in summary.failures}
    assert len(planned.failures) == len(failed)  # a dry run knows
    assert planned.bytes == summary.done * 4 * (1280 * 2 + 16)
    assert {"truncated.png", "empty.heic", "zero_width.gif"} <= set(failed)
    given = FeatureCache(tmp_path / "cache")
    assert {"Landscape_6.jpg", "举个例子图片.png", "cat.jpg"} <= set(given.ids)
    assert summary.done + len(failed) == len(sources)
    assert all(failure.reason and failure.detail for failure in failed.values())
    for name in ("rstnet-hdf5", "grid-pth", "cocobu", "grit-hdf5"):
        kind = registry.get(name)
        export_features(tmp_path / "cache", kind, tmp_path / name)
        found = import_features([(tmp_path / name, kind)], tmp_path / f"{name}-back")
        assert (found.done, found.failures) == (len(given), [])
        back = FeatureCache(tmp_path / f"{name}-back")
        assert verify(tmp_path / f"{name}-back").sound
        for record in given:
            again = back.read(record.image_id)
            np.testing.assert_array_equal(again.streams["grids"], record.streams["grids"])
