"""Folders, files, lists and tables as sources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from extract.errors import ExtractError
from extract.sources import find_sources


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def ids(*inputs: Path, relative_ids: bool = False) -> list[str]:
    return [s.image_id for s in find_sources(inputs, relative_ids=relative_ids)]


def test_folder_is_walked_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "b.JPG", "a.png", "sub/deep/c.webp", "notes.txt", "sub/readme.md")
    caplog.set_level("INFO")
    assert ids(tmp_path) == ["a", "b", "c"]
    assert ids(tmp_path, relative_ids=True) == ["a.png", "b.JPG", "sub/deep/c.webp"]
    assert "passed over 2 files" in caplog.text
    (tmp_path / "notes.txt").unlink()
    caplog.clear()
    find_sources([tmp_path])
    assert "passed over 1 file not named as images are" in caplog.text


def test_coco_names_become_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "COCO_val2014_000000037209.jpg", "sub/COCO_train2014_000000000009.jpg")
    assert ids(tmp_path) == ["37209", "9"]


def test_odd_names(tmp_path: Path) -> None:
    names = ["a b.jpg", "a'$(x)&;.jpg", "line\nfeed.jpg", "举个例子.png", "-x.jpg", ".hidden.jpg"]
    touch(tmp_path, *names)
    assert set(ids(tmp_path, relative_ids=True)) == set(names)


def test_a_name_that_is_no_text_gets_an_id_that_can_be_stored(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.jpg")
    try:
        Path(os.fsdecode(path)).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    (source,) = find_sources([tmp_path])
    assert source.image_id == "caf\\xe9"
    assert source.file.encode("utf-8").endswith(b"caf\\xe9.jpg")
    assert source.path.read_bytes() == b"x"


def test_links_are_followed_once(tmp_path: Path) -> None:
    photos, elsewhere = tmp_path / "photos", tmp_path / "elsewhere"
    touch(photos, "z/real.jpg")
    touch(elsewhere, "far.jpg")
    (photos / "a_link.jpg").symlink_to(photos / "z" / "real.jpg")  # sorts before what it names
    (photos / "again").symlink_to(photos / "z")
    (photos / "z" / "loop").symlink_to(photos)
    (photos / "out").symlink_to(elsewhere)
    (photos / "broken.jpg").symlink_to(tmp_path / "absent.jpg")
    assert ids(photos, relative_ids=True) == ["broken.jpg", "out/far.jpg", "z/real.jpg"]


def test_two_files_with_one_id(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.jpg", "y/a.png")
    with pytest.raises(ExtractError, match=r"x/a\.jpg and .*y/a\.png .*'a'.*--id relative-path"):
        find_sources([tmp_path])
    assert ids(tmp_path, relative_ids=True) == ["x/a.jpg", "y/a.png"]


def test_the_same_file_given_twice_is_one(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.jpg")
    again = tmp_path / ".." / tmp_path.name / "a.jpg"
    assert ids(tmp_path, again, tmp_path / "a.jpg") == ["a", "b"]


def test_list_file(tmp_path: Path) -> None:
    touch(tmp_path, "sub/a.jpg", "photo.data")
    listing = tmp_path / "list.txt"
    listing.write_bytes("\ufeffsub/a.jpg\r\n\nphoto.data\nabsent name.jpg\n".encode())
    found = find_sources([listing])
    assert [s.image_id for s in found] == ["a", "photo.data", "absent name"]  # all that is listed
    assert found[0].path == tmp_path / "sub" / "a.jpg"
    assert ids(listing, relative_ids=True)[0] == "sub/a.jpg"


def test_table(tmp_path: Path) -> None:
    table = tmp_path / "captions.csv"
    table.write_text('caption,image\n"one, two\nlines",b.jpg\nmore,b.jpg\nlast,"a,1.jpg"\n')
    assert ids(table) == ["b", "a,1"]
    table.write_text("image_id,file_name\n17,x/b.jpg\nn2,x/c.jpg\n")
    found = find_sources([table])
    assert [(s.image_id, s.path.name) for s in found] == [("17", "b.jpg"), ("n2", "c.jpg")]
    tabbed = tmp_path / "t.tsv"
    tabbed.write_text("filename\tcaption\na.jpg\tx\n")
    assert ids(tabbed, table) == ["a", "17", "n2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"line 1: the columns are a, b, wanted one of image"),
        ("", r"the columns are none"),
        ("image,caption\na.jpg,x\n,y\n", r"line 3: nothing in column image"),
        ("id,image\n,a.jpg\n", r"line 2: nothing in column id"),
        ("id,image\n1,a.jpg\n1,b.jpg\n", r"a\.jpg and .*b\.jpg have the same image id '1'"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "t.csv"
    table.write_text(text)
    with pytest.raises(ExtractError, match=message):
        find_sources([table])


def test_inputs_that_give_nothing(tmp_path: Path) -> None:
    with pytest.raises(ExtractError, match="no image in"):
        find_sources([tmp_path])
    with pytest.raises(ExtractError, match="absent: not there"):
        find_sources([tmp_path / "absent"])
    latin = tmp_path / "list.txt"
    latin.write_bytes(b"caf\xe9.jpg\n")
    with pytest.raises(ExtractError, match="UTF-8"):
        find_sources([latin])
