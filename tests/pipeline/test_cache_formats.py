"""`pipeline cache import` and `export`: exit codes, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli import main
from tests.extract.format_records import IDS, cache_of


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in args])
    return int(caught.value.code or 0)


def test_export_and_import(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    cache, target = cache_of(tmp_path / "cache"), tmp_path / "f.tsv"
    assert run("cache", "export", cache, "--format", "butd_tsv", "--out", target) == 0
    assert "3 images as butd-tsv" in capsys.readouterr().out
    back = tmp_path / "back"
    assert run("cache", "import", target, "--out", back, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"done": 3, "already": 0, "repeated": 0, "failed": [], "out": str(back)}
    data = target.read_bytes()
    target.write_bytes(data[:-20])  # as a killed program leaves it
    assert run("cache", "import", target, "--out", tmp_path / "cut") == 3
    said = capsys.readouterr()
    assert "f.tsv: line 3: features " in said.err and "1 bad" in said.out
    assert run("cache", "export", cache, "--format", "m2-hdf5", "--out", tmp_path / "m2") == 0
    assert run("cache", "import", tmp_path / "m2", "--out", tmp_path / "m") == 0
    assert "--sizes gives them" in capsys.readouterr().err
    assert run("cache", "verify", tmp_path / "m") == 0
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"thing {k}" for k in range(9)))
    options = ["--format", "lxmert-tsv", "--out"]
    assert run("cache", "export", cache, *options, tmp_path / "l.tsv") == 0
    args = ["cache", "import", tmp_path / "l.tsv", "--objects", names, "--out", tmp_path / "l"]
    assert run(*args) == 0 and run(*args) == 0
    assert f"{len(IDS)} already there" in capsys.readouterr().out
    assert run("cache", "inspect", tmp_path / "l") == 0
    assert "thing 3" in capsys.readouterr().out


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    cache = cache_of(tmp_path / "cache")
    assert run("cache", "export", cache, "--format", "x", "--out", tmp_path / "x") == 2
    assert "no format 'x'; there are m2-hdf5" in capsys.readouterr().err
    assert run("cache", "export", cache, "--format", "m2-hdf", "--out", tmp_path / "x") == 2
    assert "did you mean 'm2-hdf5'? There are m2-hdf5, dlct" in capsys.readouterr().err
    assert run("cache", "import", cache, "--format", "grid-ptx", "--out", tmp_path / "x") == 2
    assert "did you mean 'grid-pth'?" in capsys.readouterr().err
    assert run("cache", "import", cache / "cache.json", "--out", tmp_path / "o") == 1
    assert "cache.json: its format cannot be told" in capsys.readouterr().err
    for name in ("butd-tsv", "m2-hdf5"):
        assert run("cache", "export", cache, "--format", name, "--out", tmp_path / name) == 0
    args = [tmp_path / "butd-tsv", tmp_path / "m2-hdf5", "--out", tmp_path / "o"]
    assert run("cache", "import", *args) == 1
    assert "import files of one format at a time" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_sizes_given_later_are_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    cache, file = cache_of(tmp_path / "cache"), tmp_path / "m2.h5"
    assert run("cache", "export", cache, "--format", "m2-hdf5", "--out", file) == 0
    sizes = tmp_path / "sizes.json"
    images = [{"id": image, "width": 640, "height": 480} for image in IDS]
    sizes.write_text(json.dumps({"images": images}))
    bare, sized = ["--out", tmp_path / "bare"], ["--out", tmp_path / "sized", "--sizes", sizes]
    assert run("cache", "import", file, *bare) == 0
    assert run("cache", "import", file, *sized) == 0
    capsys.readouterr()
    assert run("cache", "import", file, *bare, "--sizes", sizes) == 1
    said = capsys.readouterr().err
    assert "was made with other settings" in said and "settings.sizes: absent / given" in said
    assert run("cache", "import", file, "--out", tmp_path / "sized") == 1
    assert "settings.sizes: given / absent" in capsys.readouterr().err
    assert run("cache", "import", file, *sized) == 0
    assert f"{len(IDS)} already there" in capsys.readouterr().out
