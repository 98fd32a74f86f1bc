"""Foreign feature files read: real ones right, bad entries named."""

from __future__ import annotations

import base64
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from extract.cache import FeatureCache, Stream
from extract.cache_export import export_features
from extract.cache_import import import_features, read_vocabulary
from extract.errors import CacheError, ExtractError
from extract.formats import registry
from extract.image_sizes import ImageSizes
from tests.extract.format_records import bring, cache_of, contents, record

pytestmark = pytest.mark.usefixtures("quick_sync")


def test_real_tsv(shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "data" / "features" / "bottom_up_tsv"
    source = folder / "train2014_obj36.tsv"
    names = {k: read_vocabulary(folder / f"{k}_vocab.txt") for k in ("objects", "attributes")}
    assert bring(source, tmp_path / "cache", names=names).done == 5
    cache = FeatureCache(tmp_path / "cache")
    assert cache.streams == {"regions": Stream(2048, "float32")}
    fields = source.read_bytes().split(b"\n")[1].split(b"\t")
    image = cache.read("573195")
    assert (image.height, image.width) == (int(fields[1]), int(fields[2]))
    boxes, features = (np.frombuffer(base64.b64decode(f), "<f4") for f in fields[-2:])
    np.testing.assert_array_equal(image.boxes["regions"].ravel(), boxes)
    np.testing.assert_array_equal(image.streams["regions"].ravel(), features)
    ids = np.frombuffer(base64.b64decode(fields[3]), "<i8")
    decoded = [cache.meta["names"]["objects"][i] for i in image.extras["regions"]["objects"]]
    assert decoded == [names["objects"][i] for i in ids]
    export_features(tmp_path / "cache", registry.get("lxmert-tsv"), tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_bytes() == source.read_bytes()
    with pytest.raises(CacheError, match="no entry .* names of them"):
        bring(source, tmp_path / "few", names={"objects": ["thing"]})


def test_real_npz(shared_dir: Path, tmp_path: Path) -> None:
    source = shared_dir / "data" / "features" / "rosita_npz"
    assert bring(source, tmp_path / "cache").done == 4
    cache = FeatureCache(tmp_path / "cache")
    assert sorted(cache.ids) == ["124629", "268556", "399879", "58350"]
    export_features(tmp_path / "cache", registry.get("rosita_npz"), tmp_path / "out")
    given, found = contents(source), contents(tmp_path / "out")
    assert found.keys() == given.keys()
    for name, arrays in given.items():
        assert found[name] == {key: arrays[key] for key in ("x", "boxes", "image_h", "image_w")}


def tsv(tmp_path: Path) -> tuple[Path, list[list[bytes]]]:
    target = tmp_path / "f.tsv"
    export_features(cache_of(tmp_path / "cache"), registry.get("butd-tsv"), target)
    return target, [line.split(b"\t") for line in target.read_bytes().splitlines()]


def nan(data: bytes) -> bytes:
    values = np.frombuffer(base64.b64decode(data), "<f4").copy()
    values[3] = np.nan
    return base64.b64encode(values.tobytes())


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda f: f[:4], r"4 columns, wanted 6 \(image_id, .*the line is cut off"),
        (lambda f: [*f[:5], f[5][:-9]], r"features .*"),
        (lambda f: [*f[:5], f[5] + b"!"], r"features is no base64"),
        (lambda f: [*f[:3], b"5x", *f[4:]], r"num_boxes is b'5x', wanted a whole number"),
        (lambda f: [*f[:4], nan(f[4]), f[5]], r"box 0 is \[.*nan\]"),
        (lambda f: [*f[:5], nan(f[5])], r"stream 'regions': row 0, column 3 is nan"),
        (lambda f: [f[0], b"9", *f[2:]], r"inside the image of 9 x 60"),
    ],
)
def test_bad_lines_are_named(
    tmp_path: Path, spoil: Callable[[list[bytes]], list[bytes]], problem: str
) -> None:
    target, lines = tsv(tmp_path)
    lines[1] = spoil(lines[1])
    target.write_bytes(b"\n".join(map(b"\t".join, lines)) + b"\n")
    found = bring(target, tmp_path / "out")
    ((where, what),) = found.failures
    assert where == "f.tsv: line 2"
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(what)
    cache = FeatureCache(tmp_path / "out")
    assert sorted(cache.ids) == sorted(["37209", "v1.2"])
    assert cache.failures()["9"]["file"] == "f.tsv: line 2"
    target.write_bytes(tsv(tmp_path / "good")[0].read_bytes())  # mended: the rest comes in
    found = bring(target, tmp_path / "out")
    assert (found.done, found.already, found.failures) == (1, 2, [])
    assert FeatureCache(tmp_path / "out").failures() == {}


def test_header_and_repeated_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, _ = tsv(tmp_path)
    header = b"image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\r\n"
    data = target.read_bytes()
    target.write_bytes(header + data.replace(b"\n", b"\r\n") + data.splitlines()[0])
    found = bring(target, tmp_path / "out")
    assert (found.done, found.repeated, found.failures) == (3, 1, [])
    assert "f.tsv: line 5: passed over" in caplog.text
    assert bring(target, tmp_path / "out").done == 0


@pytest.mark.parametrize(
    ("name", "spoil", "problem"),
    [
        ("m2-hdf5", lambda f: f.pop("9_boxes"), "f: 9: key 9_boxes is missing"),
        ("m2-hdf5", lambda f: f.pop("9_features"), "f: 9: key 9_features is missing"),
        ("dlct-hdf5", lambda f: f.pop("9_size"), "f: 9: key 9_size is missing"),
        ("rstnet-hdf5", lambda f: f["9_grids"].__setitem__((3, 2), np.nan), "row 3, column 2 is"),
        ("grit-hdf5", lambda f: f["reg_feat"].__setitem__((1, 0, 2), np.inf), "image_ids.1. "),
        ("grit-hdf5", lambda f: f["gri_mask"].__setitem__(1, True), "49 of 49 rows are padding"),
    ],
)
def test_bad_keys_are_named(
    tmp_path: Path, name: str, spoil: Callable[[h5py.File], None], problem: str
) -> None:
    target = tmp_path / "f"
    export_features(cache_of(tmp_path / "cache"), registry.get(name), target)
    with h5py.File(target, "r+") as file:
        spoil(file)
    found = bring(target, tmp_path / "out")
    assert found.done == 2
    ((where, what),) = found.failures
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(f"{where}: {what}")


def test_bad_files_of_folders_are_named(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "cache")
    export_features(cache, registry.get("milvlg-npz"), tmp_path / "npz")
    with np.load(tmp_path / "npz" / "9.npz") as file:
        arrays = dict(file)
    del arrays["bbox"]
    np.savez(tmp_path / "npz" / "9.npz", **arrays)
    data = (tmp_path / "npz" / "37209.npz").read_bytes()
    (tmp_path / "npz" / "37209.npz").write_bytes(data[: len(data) // 2])
    found = dict(bring(tmp_path / "npz", tmp_path / "a").failures)
    assert "key bbox is missing, there are x, num_bbox" in found["9.npz"]
    assert "cannot be read as .npz" in found["37209.npz"]
    export_features(cache, registry.get("grid-pth"), tmp_path / "pth")
    torch.save({"no": "tensor"}, tmp_path / "pth" / "9.pth")
    (tmp_path / "pth" / "37209.pth").write_bytes(b"PK")
    found = dict(bring(tmp_path / "pth", tmp_path / "b").failures)
    assert "holds dict, wanted a tensor" in found["9.pth"]
    assert "cannot be read as a tensor" in found["37209.pth"]
    export_features(cache, registry.get("cocobu"), tmp_path / "ic")
    (tmp_path / "ic" / "cocobu_box" / "9.npy").unlink()
    found = dict(bring(tmp_path / "ic", tmp_path / "c").failures)
    assert found == {"cocobu_att/9.npz": "cocobu_box/9.npy is missing"}


def test_pickled_info_is_read_and_nothing_else(tmp_path: Path) -> None:
    """As bottom-up-attention.pytorch writes it: a dictionary in an array of objects."""
    given = record("5")
    known = given.extras["regions"]
    info = {
        "image_id": "COCO_val2014_000000000005",
        "objects_id": known["objects"].astype("i8"),
        "objects_conf": known["scores"],
        "num_boxes": np.int64(3),
    }
    folder = tmp_path / "npz"
    folder.mkdir()
    arrays = {
        "x": given.streams["regions"],
        "bbox": given.boxes["regions"].astype("f8"),
        "num_bbox": len(given.boxes["regions"]),
        "image_h": 60,
        "image_w": 90,
    }
    np.savez_compressed(folder / "COCO_val2014_000000000005.npz", info=info, **arrays)
    assert bring(folder, tmp_path / "cache").failures == []
    extras = FeatureCache(tmp_path / "cache").read("5").extras["regions"]
    np.testing.assert_array_equal(extras["objects"], known["objects"])
    np.testing.assert_array_equal(extras["scores"], known["scores"])

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return pickle.loads, (b"",)

    np.savez(folder / "COCO_val2014_000000000006.npz", info=Evil(), **arrays)  # type: ignore[arg-type]
    ((where, what),) = bring(folder, tmp_path / "cache").failures
    assert where.endswith("6.npz") and "refused, the pickle asks for _pickle.loads" in what


def test_sizes_and_types(tmp_path: Path, shared_dir: Path) -> None:
    export_features(cache_of(tmp_path / "c"), registry.get("m2-hdf5"), tmp_path / "f")
    listing = tmp_path / "captions.json"
    listing.write_text(
        '{"images": [{"id": 37209, "width": 91, "height": 61},'
        ' {"file_name": "v1.2.jpg", "width": 90, "height": 60}]}'
    )
    options = {"sizes": ImageSizes(listing), "dtype": "float16", "name": "butd-c4-36"}
    found = bring(tmp_path / "f", tmp_path / "out", **options)
    assert found.failures == [("f: 9", f"no size of image '9' in {listing}")]
    cache = FeatureCache(tmp_path / "out")
    assert cache.meta["preset"] == "butd-c4-36"
    image = cache.read("37209")
    assert (image.width, image.height) == (91, 61)
    assert image.streams["regions"].dtype == np.float16
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("Landscape_6.jpg", "truncated.png", "empty.heic"):
        shutil.copy(shared_dir / "data" / "awkward" / "files" / name, folder)
    photos = ImageSizes(folder)
    assert photos.of("Landscape_6") == (1800, 1200)  # turned as its tag says
    assert photos.of("empty") is None and photos.of("absent") is None


def test_what_cannot_be_told(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\0" * 100)
    with pytest.raises(ExtractError, match="x.bin: its format cannot be told .none of them fit"):
        registry.guess(tmp_path / "x.bin")
    with pytest.raises(ExtractError, match="no format 'm2-hdf'.* did you mean 'm2-hdf5'"):
        registry.get("m2-hdf")
    with pytest.raises(CacheError, match="cannot be read as HDF5"):
        import_features([(tmp_path / "x.bin", registry.get("m2-hdf5"))], tmp_path / "out")
    (tmp_path / "v.txt").write_text("a\n\nb\n")
    with pytest.raises(CacheError, match="line 2 is empty"):
        read_vocabulary(tmp_path / "v.txt")


def test_memory_is_flat_in_the_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.cache_import.SHARD_BYTES", 1 << 17)
    line = "{}\t90\t60\t1\t{}\t{}\n"
    boxes, rows = (base64.b64encode(np.full(n, 1.5, "<f4").tobytes()).decode() for n in (4, 3_000))
    peaks = []
    for count in (40, 160):  # 0.5 and 1.9 MB of features
        source = tmp_path / f"{count}.tsv"
        source.write_text("".join(line.format(i, boxes, rows) for i in range(count)))
        tracemalloc.start()
        assert bring(source, tmp_path / f"out{count}").done == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.3
