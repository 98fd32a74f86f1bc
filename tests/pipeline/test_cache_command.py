"""`pipeline cache` as a user types it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import h5py
import pytest

from extract.writer import CacheWriter
from pipeline.cli import main
from pipeline.errors import PipelineError
from pipeline.id_list import read_names
from tests.extract.cache_records import META, STREAMS, flip, write_cache


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "features", ["37209", "b"], ["c"])


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeline cache ARGS`."""
    with pytest.raises(SystemExit) as caught:
        main(["cache", *map(str, args)])
    output = capsys.readouterr()
    return int(caught.value.code or 0), output.out, output.err


def test_inspect(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with CacheWriter(cache, META, STREAMS) as writer:
        writer.fail("d", "d.jpg", "truncated", "")
    line = {"image_id": "e", "file": "e.jpg", "reason": "corrupt", "detail": ""}
    (cache / "failures-1.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    code, out, _ = run(capsys, "inspect", cache)
    assert code == 0
    for part in (
        "3 images, 2 failed, folder of shards, 2 files",
        f"truncated: 1 (see {cache}/failures.jsonl, {cache}/failures-1.jsonl)",
        "2x3: 3",
        "boxes, object_scores, objects",
        "settings.size = 224",
        "weights.sha256 = abab",
    ):
        assert part in out
    code, out, _ = run(capsys, "inspect", cache, "--json")
    facts = json.loads(out)
    assert facts["meta"] == META and facts["failures"] == 2 and facts["images"] == 3
    assert facts["streams"]["grids"] == {
        "width": 8,
        "dtype": "float16",
        "rows": 18,
        "rows_min": 6,
        "rows_mean": 6.0,
        "rows_max": 6,
        "with": ["boxes"],
        "grid_shapes": {"2x3": 3},
    }
    assert facts["bytes"] == sum(p.stat().st_size for p in cache.glob("*.h5"))


def test_verify(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "verify", cache)
    assert (code, out) == (0, f"{cache}: sound, 3 images\n")
    ids = tmp_path / "wanted.txt"
    ids.write_text("COCO_val2014_000000037209.jpg\nb.png\n\nnobody\n", encoding="utf-8")
    code, out, err = run(capsys, "verify", cache, "--ids", ids)
    assert code == 1 and f"missing: 'nobody' of {ids}: not in the cache" in out
    assert "0 problems in 3 images, 1 missing" in err and "pipeline extract" in err
    shard = cache / "shard-0-00001.h5"
    flip(shard, shard.stat().st_size // 2)
    code, out, err = run(capsys, "verify", cache)
    assert code == 1 and str(shard) in out and f"rm {shard}" in err
    code, out, _ = run(capsys, "verify", cache, "--json")
    facts = json.loads(out)
    assert code == 1 and facts["sound"] is False and facts["problems"][0]["file"] == str(shard)


def test_merge_and_compare(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_cache(tmp_path / "more", ["x"])
    out_file = tmp_path / "all.h5"
    code, out, _ = run(capsys, "merge", other, cache, "--out", out_file)
    assert code == 0 and out.startswith(f"{out_file}: 4 images, ")
    assert run(capsys, "verify", out_file)[0] == 0
    code, out, err = run(capsys, "merge", cache, "--out", out_file)
    assert code == 1 and err.startswith(f"error: {out_file} is there already")
    code, out, _ = run(capsys, "compare", cache, out_file)
    assert code == 0
    for part in (
        "3 images in both",
        f"1 image only in {out_file}: x",
        "mean IoU 1.0000",
        "mean cosine 1.0000",
    ):
        assert part in out
    code, out, _ = run(capsys, "compare", cache, out_file, "--json", "--worst", "1")
    assert code == 0 and len(json.loads(out)["streams"]["grids"]["worst"]) == 1


def test_merge_notes_failures(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CacheWriter(cache, META, STREAMS) as writer:
        writer.fail("d", "d.jpg", "truncated", "")
    _, _, err = run(capsys, "merge", cache, "--out", tmp_path / "m.h5")
    assert f"note: 1 image of {cache} failed, not merged" in err


def test_errors_are_one_line_and_exit_codes_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "x.h5"
    foreign.write_bytes(b"text")
    for name in ("inspect", "verify"):
        code, out, err = run(capsys, name, foreign)
        assert code == 1 and f"{foreign}: no" in out + err and "merge CACHE" not in err
    assert run(capsys, "inspect", tmp_path / "absent")[0] == 2


def test_a_file_that_is_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["features"] = [1.0]
    (tmp_path / "res.json").write_text("[]")
    (tmp_path / "short.h5").write_bytes(b"")
    for name in ("other.h5", "res.json", "short.h5"):
        code, out, err = run(capsys, "verify", tmp_path / name)
        assert (code, out) == (1, "")
        assert err.startswith(f"error: {tmp_path / name}: no feature cache") and "NEW.h5" not in err


def test_a_damaged_file_is_still_called_a_cache(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = tmp_path / "all.h5"
    assert run(capsys, "merge", cache, "--out", merged)[0] == 0
    merged.write_bytes(merged.read_bytes()[:600])
    code, out, err = run(capsys, "verify", merged)
    assert code == 1 and f"{merged}: not a sound HDF5 file" in out
    assert "1 problem in 0 images" in err and f"make {merged} again" in err


def test_an_empty_cache(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    with CacheWriter(empty, META, STREAMS):
        pass
    code, out, _ = run(capsys, "verify", empty)
    assert (code, out) == (0, f"{empty}: sound, but empty: no image in it yet\n")
    code, out, _ = run(capsys, "inspect", empty)
    assert code == 0 and "empty: no image in it yet" in out
    for pair in ((cache, empty), (empty, cache)):
        code, _, err = run(capsys, "compare", *pair)
        assert code == 1 and f"{empty}: an empty cache, nothing to compare" in err


KARPATHY = {
    "images": [
        {
            "filename": "COCO_val2014_000000000009.jpg",
            "cocoid": 9,
            "split": "test",
            "sentences": [{"raw": "a dog", "tokens": ["a", "dog"]}],
        }
    ]
}
COCO = {
    "images": [{"id": 9, "file_name": "x.jpg"}],
    "annotations": [{"id": 1, "image_id": 9, "caption": "a dog"}],
}


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("ids.txt", "9\nx.jpg\n9\n", ["9", "x.jpg"]),
        ("ids", "\ufeff9\r\n", ["9"]),
        ("ids.json", json.dumps([9, "x.jpg"]), ["9", "x.jpg"]),
        ("k.json", json.dumps(KARPATHY), ["9"]),
        ("c.json", json.dumps(COCO), ["9"]),
        ("info.json", json.dumps({"images": COCO["images"]}), ["9"]),
        ("results.json", json.dumps([{"image_id": 9, "caption": "a"}]), ["9"]),
        ("t.csv", 'image,caption\nx.jpg,"a, b"\nx.jpg,c\ny.jpg,d\n', ["x.jpg", "y.jpg"]),
        ("t.tsv", "split\timage_id\ntest\t9\n", ["9"]),
    ],
)
def test_names_of_any_list(tmp_path: Path, name: str, content: str, names: list[str]) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert list(read_names(path)) == names
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_names(packed)) == names


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("e.txt", "\n \n", "names no image"),
        ("e.json", "{}", "holds a dict"),
        ("e.json", "[[1]]", r"entry 1 is \[1\]"),
        ("e.json", "[", "line 1"),
        ("e.csv", "a,b\n1,2\n", "line 1: found the columns a, b"),
        ("e.csv", "a,image\n1\n", "line 2: 1 columns"),
        ("e.txt", "\xff", "is no UTF-8"),
    ],
)
def test_bad_lists(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(PipelineError, match=said):
        read_names(path)
    assert str(path) in str(pytest.raises(PipelineError, read_names, path).value)


def test_help_gives_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("inspect", "verify", "merge", "compare"):
        code, out, _ = run(capsys, name, "--help")
        assert code == 0 and f"pipeline cache {name} " in out
