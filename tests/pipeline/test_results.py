"""Results and reference files of every form, ids of every kind, and errors that name the place."""

from __future__ import annotations

import gzip
import json
import shlex
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caption.errors import CaptionError
from extract.cache import image_id_of
from pipeline.errors import USER_ERRORS, PipelineError
from pipeline.results import (
    LONGEST,
    Results,
    canonical_id,
    ids_by_spelling,
    read_references,
    read_results,
    shared_images,
    training_captions,
    write_results,
)

CAPTIONS = {"37209": "a man", "42": "ein Hündchen, naß"}
KARPATHY = {
    "images": [
        {
            "filename": "COCO_val2014_000000037209.jpg",
            "cocoid": 37209,
            "split": "test",
            "sentences": [{"raw": "a man"}, {"raw": "one man"}],
        },
        {
            "filename": "COCO_train2014_000000000042.jpg",
            "cocoid": 42,
            "split": "restval",
            "sentences": [{"raw": "a dog"}],
        },
    ]
}


def write(path: Path, content: Any) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        path.write_text(text, encoding="utf-8")
    return path


def items(**ids: Any) -> list[dict[str, Any]]:
    return [{"image_id": image, "caption": caption} for image, caption in ids.items()]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (37209, "37209"),
        ("37209", "37209"),
        ("000000037209", "37209"),
        ("COCO_val2014_000000037209.jpg", "37209"),
        ("val2014/COCO_val2014_000000037209.JPG", "37209"),
        (r"C:\images\COCO_val2014_000000037209.jpg", "37209"),
        ("COCO_val2014_000000037209", "37209"),
        ("000000037209.jpg", "37209"),
        ("1000268201_693b08cb0e.jpg", "1000268201_693b08cb0e"),
        ("holiday.v2", "holiday.v2"),
        ("a/b", "a/b"),
        ("٣", "٣"),
        (0, "0"),
        ("-5", "-5"),
    ],
)
def test_one_spelling_per_image(given: int | str, wanted: str) -> None:
    assert canonical_id(given) == wanted


@given(st.one_of(st.integers(0), st.text("a01 _./\\COjpgJPG", max_size=12)))
def test_canonical_ids_stay_as_they_are(image: int | str) -> None:
    once = canonical_id(image)
    assert canonical_id(once) == once
    if isinstance(image, int):
        assert canonical_id(f"COCO_val2014_{image:012d}.jpg") == once


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "r.json",
            [
                {"image_id": 37209, "caption": "a man"},
                {"image_id": "42", "caption": CAPTIONS["42"]},
            ],
        ),
        (
            "r.json",
            [
                {"id": 9, "image": "37209.jpg", "caption": "a man"},
                {"image_id": 42.0, "caption": CAPTIONS["42"]},
            ],
        ),
        ("r.json", CAPTIONS),
        ("r.json", {"37209": ["a man"], "42": [{"caption": CAPTIONS["42"]}]}),
        (
            "r.jsonl",
            '{"image_id": 37209, "caption": "a man"}\n\n'
            '{"image_id": 42, "caption": "ein Hündchen, naß"}',
        ),
        ("r.csv", 'image,caption\n37209,a man\n42,"ein Hündchen, naß"\n'),
        (
            "r.tsv",
            "image_id\tcaption\nCOCO_val2014_000000037209.jpg\ta man\n42\tein Hündchen, naß\n",
        ),
        (
            "r.json",
            {
                "images": [],
                "annotations": [
                    {"image_id": 37209, "caption": "a man"},
                    {"image_id": 42, "caption": CAPTIONS["42"]},
                ],
            },
        ),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte-order mark"])
def test_forms_of_results(tmp_path: Path, name: str, content: Any, mark: bytes) -> None:
    path = write(tmp_path / name, content)
    path.write_bytes(mark + path.read_bytes())
    assert read_results(path).captions == CAPTIONS


@pytest.mark.parametrize("name", ["r.json.gz", "r.csv.gz", "r.jsonl.gz", "r.json", "r"])
def test_gzip_is_read_whatever_the_name(tmp_path: Path, name: str) -> None:
    text = {
        "r.csv.gz": 'image,caption\n37209,a man\n42,"ein Hündchen, naß"\n',
        "r.jsonl.gz": "\n".join(map(json.dumps, items(**CAPTIONS))),
    }.get(name, json.dumps(CAPTIONS))
    path = write(tmp_path / name, gzip.compress(text.encode()))
    assert read_results(path).captions == CAPTIONS
    packed = write(tmp_path / "dataset.json.gz", gzip.compress(json.dumps(KARPATHY).encode()))
    assert read_references(packed, split="train") == {"42": ["a dog"]}
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(USER_ERRORS, match=f"{name}: gzip that ends early or is damaged"):
        read_results(path)


def test_composed_and_decomposed_letters_are_the_same_image() -> None:
    """macOS takes the letters of file names apart; captions are typed whole."""
    apart = unicodedata.normalize("NFD", "Größe.jpg")
    assert apart != "Größe.jpg"
    assert canonical_id(apart) == canonical_id("Größe.jpg") == image_id_of(apart) == "Größe"


def test_ids_of_a_cache_by_any_spelling_that_means_one_of_them() -> None:
    known = ["a/x.jpg", "b/x.jpg", "7", "007", "COCO_val2014_000000000042.jpg"]
    found = ids_by_spelling(known)
    assert all(found[image] == image for image in known)
    assert found["42"] == "COCO_val2014_000000000042.jpg"
    assert "x" not in found  # two of them
    assert found["7"] == "7"


def test_given_ids_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", items(**{"7": "a"}) + [{"image_id": 8, "caption": "b"}])
    results = read_results(path)
    assert results.given == {"7": "7", "8": 8}
    write_results(
        tmp_path / "out" / "w.json", {i: results.captions[k] for k, i in results.given.items()}
    )
    assert json.loads((tmp_path / "out" / "w.json").read_text()) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ({"7": ["a man", "one man"], "8": "a dog"}, {"7": ["a man", "one man"], "8": ["a dog"]}),
        (items(a="x") + items(a="y"), {"a": ["x", "y"]}),
        (  # as pycocoevalcap has them in memory
            {
                "7.jpg": [
                    {"image_id": 7, "file_name": "7.jpg", "id": 1, "caption": "x"},
                    {"id": 2, "caption": "y"},
                ]
            },
            {"7": ["x", "y"]},
        ),
        ({"dog": [{"image": "dog.jpg", "caption": "x"}]}, {"dog": ["x"]}),
    ],
)
def test_forms_of_references(tmp_path: Path, content: Any, wanted: dict[str, list[str]]) -> None:
    assert read_references(write(tmp_path / "c.json", content)) == wanted


@pytest.mark.parametrize("more", [{}, {"annotations": {}}, {"annotations": None}])
def test_an_image_info_file_has_no_references(tmp_path: Path, more: Any) -> None:
    info = {"images": [{"id": 1, "file_name": "000000000001.jpg"}], **more}
    with pytest.raises(
        CaptionError,
        match="c.json: has `images` but no list `annotations`; image_info files have no captions,"
        " wanted Karpathy's .* or COCO's .*captions_",
    ):
        read_references(write(tmp_path / "c.json", info))
    broken = {"images": [{"filename": "1.jpg"}]}
    with pytest.raises(CaptionError, match=r"images\[0\]: `sentences` is None, wanted a list"):
        read_references(write(tmp_path / "c.json", broken))


def test_splits_of_references(tmp_path: Path) -> None:
    path = write(tmp_path / "dataset.json", KARPATHY)
    assert read_references(path, split="test") == {"37209": ["a man", "one man"]}
    assert read_references(path, split="train") == {"42": ["a dog"]}
    assert set(read_references(path)) == {"37209", "42"}
    assert training_captions(path) == {"a dog"}
    plain = write(tmp_path / "c.json", {"1": ["a"]})
    with pytest.raises(PipelineError, match="c.json: has no splits; leave out --split test"):
        read_references(plain, split="test")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "r.json",
            items(a="x", b=3),
            r"r.json: entry 2 \(image 'b'\): caption is 3, wanted a string",
        ),
        ("r.json", items(a=None, b=3), r"entry 1 .*caption is null,.*\(and 1 more like it\)"),
        ("r.json", items(a=" \n"), "caption is empty, wanted text.*--allow-empty"),
        ("r.json", items(a="x" * (LONGEST + 1)), r"has 10,001 characters .*wanted at most 10,000"),
        (
            "r.json",
            '[{"image_id": 1, "caption": "a \\ud83d"}]',
            r"half a character \(U\+D83D\) at 2",
        ),
        ("r.json", items(a="x") + ["text"], "entry 2 is 'text', wanted"),
        ("r.json", items(a="x") + [None], "entry 2 is null, wanted"),
        ("r.json", {"a": ["x", None]}, "key 'a', caption 2 .*caption is null"),
        ("r.json", " \n", "r.json: is empty; wanted"),
        ("r.csv", "", "r.csv: is empty; wanted"),
        ("r.json", b"\xff\xd8\xff\xe0\x00\x10JFIF", r"is an image \(JPEG\); wanted"),
        (
            "r.json",
            [{"category_id": 1, "caption": "x"}],
            "entry 1 has the keys 'category_id', 'caption', wanted 'image_id'",
        ),
        (
            "r.json",
            [{"image_id": True, "caption": "x"}],
            "image_id is true, wanted a number or a string",
        ),
        ("r.json", [{"image_id": 1.5, "caption": "x"}], "image_id is 1.5, wanted"),
        ("r.json", '[{"image_id": NaN, "caption": "x"}]', "image_id is NaN, wanted"),
        ("r.json", '[{"image_id": 1,\n "caption": "x"', r"r.json: line 2, column 16: Expecting"),
        ("r.json", '{"image_id": 1, "caption": "x"}\n{"image_id": 2}', r"line 2.*name it .jsonl"),
        (
            "r.json",
            '{"1": "a", "2": "b", "1": "c"}',
            r"the key '1' stands 2 times in one object \(1 such",
        ),
        ("r.json", "[" * 100_000, "r.json: nested too deeply"),
        ("r.json", "3", "holds 3, wanted"),
        ("r.json", "[]", "r.json: no captions; wanted"),
        *(
            (
                "r.json",
                {"info": {}, "results": entries},
                rf"r.json: key 'results' holds a list of entries .{len(entries)}., wanted the list"
                r' itself: \[{"image_id"',
            )
            for entries in (items(a="x"), items(a="x", b="y"))
        ),
        *(
            ("r.json", {"results": entries}, r"\) with 'id' in place of 'image_id', wanted")
            for entries in ([{"id": 7, "caption": "x"}], [{"id": 7}, {"id": 8}])
        ),
        ("r.json", items(a="x")[0], "r.json: holds one entry .*, wanted a list of such entries"),
        ("r.jsonl", '{"image_id": 1, "caption": "x"}\n{"image', "r.jsonl: line 2: no JSON"),
        (
            "r.json",
            '[{"image_id": 1, "caption": "é"}]'.encode("latin-1"),
            r"line 1, byte 29: b'\\xe9' is no UTF-8.*iconv",
        ),
        ("r.json", "[]".encode("utf-16"), "is UTF-16, wanted UTF-8"),
        ("r.csv", "image,caption\n1,\xe9\n".encode("latin-1"), "r.csv: line 2, byte 16"),
        ("r.json", items(a="x", b="y") * 2, r"2 images \(a, b\) with more than one caption"),
        (
            "r.json",
            [{"image_id": i, "caption": "x"} for i in range(15)] * 2,
            r"15 images \(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 5 more\)",
        ),
        (
            "r.json",
            [
                {"image_id": 7, "caption": "x"},
                {"image_id": "COCO_val2014_000000000007.jpg", "caption": "y"},
            ],
            r"1 image \(7\) with more",
        ),
    ],
)
def test_broken_results_are_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        read_results(write(tmp_path / name, content))


def test_the_conversion_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "my results.json"
    for data in ("[]".encode("utf-16"), b"\xe9"):
        path.write_bytes(data)
        with pytest.raises(PipelineError) as caught:
            read_results(path)
        command = shlex.split(str(caught.value).partition("convert ")[2].partition(": ")[2])
        assert command[0] == "iconv" and command[-3:] == [str(path), ">", "NEW"]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="r.json: cannot be read .No such file"):
        read_results(tmp_path / "r.json")


def test_empty_captions_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", items(a="", b="x"))
    assert read_results(path, allow_empty=True).captions == {"a": "", "b": "x"}


def results_of(path: str, *images: int) -> Results:
    return Results(
        path=Path(path), captions={str(i): "x" for i in images}, given={str(i): i for i in images}
    )


def test_missing_and_extra_images_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("c.json"), {"1": ["a"]})
    references = {str(i): ["a"] for i in range(20)}
    with pytest.raises(PipelineError) as caught:
        shared_images(
            references, [results_of("r.json", *range(2, 23))], source=Path("c.json"), subset=False
        )
    assert str(caught.value) == (
        "r.json has no caption for 2 images (0, 1) of c.json; r.json has captions for 3 images"
        " (20, 21, 22) not in c.json; to score the images that all files share:"
        " pipeline eval --results r.json --references c.json --subset"
    )


def test_images_without_captions_among_the_references_are_named(tmp_path: Path) -> None:
    content = {
        "images": [{"id": image, "file_name": f"{image}.jpg"} for image in (1, 2, 3)],
        "annotations": [{"image_id": image, "caption": "a"} for image in (1, 2)],
    }
    path = write(tmp_path / "c.json", content)
    with pytest.raises(PipelineError) as caught:
        shared_images(
            read_references(path), [results_of("r.json", 1, 2, 3, 4)], source=path, subset=False
        )
    assert str(caught.value).startswith(
        f"r.json has captions for 1 image (4) not in {path};"
        f" {path} has no caption for 1 image (3) of r.json; to score"
    )


def test_the_command_for_shared_images_keeps_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be pasted: names are quoted, and --split is not asked for twice."""
    monkeypatch.chdir(tmp_path)
    write(Path("c d.json"), {"1": ["a"]})
    with pytest.raises(PipelineError) as caught:
        shared_images(
            {"1": ["a"], "2": ["b"]},
            [results_of("my results.json", 1)],
            source=Path("c d.json"),
            subset=False,
            typed=("--split", "test", "--metrics", "cider"),
        )
    assert str(caught.value).endswith(
        "pipeline eval --results 'my results.json' --references 'c d.json' --split test"
        " --metrics cider --subset"
    )


def test_subset_is_what_all_files_share(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    references = {str(i): ["a"] for i in range(5)}
    two = [results_of("r.json", 4, 3, 2, 9), results_of("s.json", 2, 4)]
    assert shared_images(references, two, source=Path("c.json"), subset=True) == ["2", "4"]
    assert "scoring 2 of the 5 images of c.json" in caplog.text


@pytest.mark.parametrize("subset", [False, True])
def test_files_of_different_images_show_their_ids(tmp_path: Path, subset: bool) -> None:
    references = {"dog": ["a"], "cat": ["b"]}
    path = write(tmp_path / "c.json", references)
    with pytest.raises(
        PipelineError,
        match="share no image: the ids are like 1, 2 and like dog, cat; give the references of"
        " these images$",
    ):
        shared_images(references, [results_of("r.json", 1, 2)], source=path, subset=subset)


SPLITS = {1: "train", 2: "restval", 3: "val", 4: "val", 5: "test", 6: "test"}


@pytest.mark.parametrize(
    ("images", "typed", "advice"),
    [
        ([3, 4], (), "; all images of r.json are in the split val: --split val"),
        ([1, 2], (), "; all images of r.json are in the split train: --split train"),
        ([5], (), "; all images of r.json are in the split test: --split test"),
        ([1, 3], (), " --subset (or pick one split by --split: train, val, test)"),
        ([5, 9], (), " --subset (or pick one split by --split: train, val, test)"),
        ([5], ("--split", "test"), " --split test --subset"),
        ([4], ("--split", "test"), "; all images of r.json are in the split val: --split val"),
        ([9], ("--split", "test"), "; give the references of these images or another --split"),
    ],
)
def test_the_split_of_the_results_is_named(
    tmp_path: Path, images: list[int], typed: tuple[str, ...], advice: str
) -> None:
    content = [
        {"filename": f"{image}.jpg", "split": split, "sentences": [{"raw": "a man"}]}
        for image, split in SPLITS.items()
    ]
    path = write(tmp_path / "dataset.json", {"images": content})
    references = read_references(path, split=typed[1] if typed else None)
    with pytest.raises(PipelineError) as caught:
        shared_images(
            references, [results_of("r.json", *images)], source=path, subset=False, typed=typed
        )
    assert str(caught.value).endswith(advice)
