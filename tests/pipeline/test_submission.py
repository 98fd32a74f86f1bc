"""Files for the COCO server: names, ids, counts, and nothing written when anything is wrong."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from pipeline import submission
from pipeline.errors import PipelineError
from pipeline.results import Results
from pipeline.submission import read_ids, write_submission


def results_of(*images: int | str) -> Results:
    return Results(
        path=Path("r.json"),
        captions={str(i): f"caption {i}" for i in images},
        given={str(i): i for i in images},
    )


def test_both_splits_end_in_one_zip(tmp_path: Path) -> None:
    ids = {"1", "2"}
    first = write_submission(results_of("1", 2), "net-1", "val2014", tmp_path, ids)
    assert first.splits == ("val2014",)
    second = write_submission(results_of(1, 2), "net-1", "test2014", tmp_path, ids)
    names = [f"captions_{split}_net-1_results.json" for split in ("val2014", "test2014")]
    assert second.splits == ("val2014", "test2014")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "net-1_results.zip"])
    with zipfile.ZipFile(second.archive) as archive:
        assert archive.namelist() == names and archive.testzip() is None
        assert json.loads(archive.read(names[0])) == [
            {"image_id": 1, "caption": "caption 1"},
            {"image_id": 2, "caption": "caption 2"},
        ]


def test_counts_without_a_list_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(submission.IMAGES, "val2014", 2)
    assert write_submission(results_of(5, 6), "net", "val2014", tmp_path).results.exists()


@pytest.mark.parametrize(
    ("results", "name", "split", "ids", "message"),
    [
        (
            results_of(1),
            "net",
            "val2014",
            None,
            "1 image, wanted the 40,504 of val2014; .*--submission-ids",
        ),
        (results_of(1), "net", "test2014", None, "wanted the 40,775 of test2014"),
        (results_of(1, "dog"), "net", "val2014", None, r"wants integer ids, found 1 image \(dog\)"),
        (
            results_of(1),
            "net",
            "val2014",
            {"1", "2"},
            r"has no caption for 1 image \(2\); .* 2 images of val2014",
        ),
        (results_of(1, 3), "net", "val2014", {"1"}, r"captions also 1 image \(3\)"),
        (results_of(1), "my_net", "val2014", {"1"}, "--submission is 'my_net', wanted letters"),
        (results_of(1), "../net", "val2014", {"1"}, "--submission is"),
        (results_of(1), "net", "val2017", {"1"}, "wanted val2014 or test2014"),
    ],
)
def test_wrong_submissions_write_nothing(
    tmp_path: Path, results: Results, name: str, split: str, ids: set[str] | None, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        write_submission(results, name, split, tmp_path, ids)
    assert list(tmp_path.iterdir()) == []


def test_ids_of_a_list_and_of_image_info(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    for content in ([1, "2"], {"images": [{"id": 1, "file_name": "x.jpg"}, {"id": 2}]}):
        path.write_text(json.dumps(content))
        assert read_ids(path) == {"1", "2"}
    for broken in ([], {"images": [{}]}, [True], {"a": 1}):
        path.write_text(json.dumps(broken))
        with pytest.raises(PipelineError, match="ids.json: no image ids"):
            read_ids(path)
