"""Images to a cache: the same numbers in any company, after any kill, or a reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from extract import presets
from extract.boxes import read_boxes
from extract.cache import FeatureCache, ImageFeatures
from extract.errors import CacheError, ExtractError
from extract.extractor import Extractor
from extract.images import UprightImage
from extract.run import extract, extract_in_memory, plan
from extract.sources import Source, find_sources
from pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("size=64", "batch=4")  # a small network input: the loop is tested, not the numbers
OPTIONS = ["--preset", "imagenet-grid", *(word for o in SMALL for word in ("-o", o))]
# extracts the folder argv[1] into argv[2] in shards of four
SCRIPT = """
import sys
from pathlib import Path
from extract import presets
from extract.extractor import Extractor
from extract.presets import Preset
from extract.run import extract
from extract.sources import find_sources
extractor = Extractor("small", Preset(size=64, batch=4), "cpu", None)
print("ready", flush=True)
extract(find_sources([Path(sys.argv[1])]), extractor, Path(sys.argv[2]), shard_images=4)
"""


def draw(folder: Path, count: int, start: int = 0) -> Path:
    """`count` different pictures `pNNN.png` of different sizes."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(start)
    for number in range(start, start + count):
        width, height = (int(v) for v in random.integers(30, 90, 2))
        image = Image.new("RGB", (width, height), tuple(random.integers(0, 256, 3).tolist()))
        ImageDraw.Draw(image).ellipse((5, 5, 25, 20 + number % 9), fill=(number % 256, 90, 200))
        image.save(folder / f"p{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("extract") / "photos", 10)


@pytest.fixture(scope="module")
def small() -> Extractor:
    return Extractor("small", presets.Preset(size=64, batch=4), "cpu", None)


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in args])
    return int(caught.value.code or 0)


def assert_same(a: ImageFeatures, b: ImageFeatures) -> None:
    assert (a.image_id, a.width, a.height, a.file) == (b.image_id, b.width, b.height, b.file)
    assert a.streams.keys() == b.streams.keys() and a.grid_shape == b.grid_shape
    for name in a.streams:
        np.testing.assert_array_equal(a.streams[name], b.streams[name])
        np.testing.assert_array_equal(a.boxes[name], b.boxes[name])


def assert_same_caches(a: Path, b: Path) -> None:
    one, two = FeatureCache(a), FeatureCache(b)
    assert sorted(one.ids) == sorted(two.ids)
    for image in one.ids:
        assert_same(one.read(image), two.read(image))


@pytest.mark.parametrize("name", ["imagenet-grid", "imagenet-regions", "imagenet-pyramid"])
def test_numbers_do_not_depend_on_the_batch(photos: Path, tmp_path: Path, name: str) -> None:
    """At the presets' own sizes: alone, first, last and in the middle, bit by bit."""
    sources = find_sources([photos])[:3]
    boxes = None
    if name == "imagenet-regions":
        (tmp_path / "b.json").write_text(
            json.dumps({s.image_id: [[0, 0, 20, 20], [4.5, 6, 30, 29]] for s in sources})
        )
        boxes = read_boxes(tmp_path / "b.json")
    extractor = Extractor(name, presets.get(name), "cpu", boxes)
    prepared = [extractor.prepare(source) for source in sources]
    alone = extractor.extract(prepared[:1])[0]
    for company in (prepared[::-1], [prepared[1], prepared[0]]):
        found = extractor.extract(company)
        assert [f.image_id for f in found] == [p.source.image_id for p in company]
        assert_same(found[company.index(prepared[0])], alone)


def test_a_pyramid_is_two_maps_of_one_pass(photos: Path, tmp_path: Path) -> None:
    preset = replace(presets.get("imagenet-pyramid"), size=64, batch=2)
    extractor = Extractor("pyramid", preset, "cpu", None)
    sources = find_sources([photos])[:2]
    planned = plan(sources, extractor, tmp_path / "out")
    extract(sources, extractor, tmp_path / "out")
    cache = FeatureCache(tmp_path / "out")
    image = cache.read(sources[0].image_id)
    assert image.grid_shape == {"pyramid_high": (2, 2), "pyramid_low": (4, 4)}
    assert image.streams["pyramid_high"].shape == (4, 1280)
    assert image.streams["pyramid_low"].shape == (16, 672)
    assert len(image.boxes["pyramid_low"]) == 16
    assert planned.bytes == 2 * (4 * (2 * 1280 + 16) + 16 * (2 * 672 + 16))
    maps = extractor.network(extractor.prepare(sources[0]).pixels[None].expand(2, -1, -1, -1))
    wanted = maps["x16"][0].flatten(1).T.detach().numpy()
    np.testing.assert_allclose(image.streams["pyramid_low"], wanted, atol=1e-2)
    assert presets.from_settings(cache.meta["settings"]) == preset
    for levels in (("x16", "head"), ("head",)):
        with pytest.raises(ExtractError, match="the coarse one first"):
            Extractor("wrong", replace(preset, pyramid=levels), "cpu", None)


def test_a_cache_of_before_there_were_pyramids_can_be_continued() -> None:
    assert "pyramid" not in presets.get("imagenet-grid").settings()


def test_grid_is_the_map_row_by_row(tmp_path: Path) -> None:
    """A change in one quarter of a picture changes the rows whose boxes lie there most."""
    extractor = Extractor("grid", presets.Preset(size=256, batch=2), "cpu", None)
    plain = np.full((90, 120, 3), 128, dtype=np.uint8)
    changed = plain.copy()
    changed[45:, :60] = np.random.default_rng(0).integers(0, 256, (45, 60, 3))  # lower left
    prepared = []
    for name, pixels in (("a", plain), ("b", changed)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        prepared.append(extractor.prepare(Source(name, tmp_path / f"{name}.png")))
    one, two = extractor.extract(prepared)
    assert one.streams["grids"].shape == (64, 1280) and one.grid_shape["grids"] == (8, 8)
    assert one.boxes["grids"][[0, 9, 63]].tolist() == [
        [0, 0, 15, 11.25],
        [15, 11.25, 30, 22.5],
        [105, 78.75, 120, 90],
    ]
    change = np.abs(one.streams["grids"] - two.streams["grids"]).sum(axis=1)  # (64,)
    x, y = (one.boxes["grids"][:, :2] + one.boxes["grids"][:, 2:]).T / 2  # (64,) each
    quarters = {
        (low, right): change[((y > 45) == low) & ((x > 60) == right)].mean()
        for low in (False, True)
        for right in (False, True)
    }
    assert max(quarters, key=lambda place: quarters[place]) == (True, False)


def test_killed_runs_lose_nothing_and_end_the_same(tmp_path: Path, small: Extractor) -> None:
    photos, killed, whole = draw(tmp_path / "photos", 40), tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-c", SCRIPT, str(photos), str(killed)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        journal, limit = killed / "journal-0.jsonl", time.monotonic() + 600
        while not journal.exists() or journal.read_bytes().count(b"\n") < 2:
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.002)
    finally:
        process.kill()
        process.communicate()
    reported = [i for x in journal.read_text().splitlines() for i in json.loads(x)["ids"]]
    assert 8 <= len(reported) and set(reported) <= set(FeatureCache(killed).ids)
    sources = find_sources([photos])
    summary = extract(sources, small, killed, shard_images=4)
    assert summary.already >= len(reported) and summary.done + summary.already == 40
    extract(sources, small, whole)
    assert_same_caches(killed, whole)


def test_interrupt_keeps_what_is_ready(
    photos: Path, tmp_path: Path, small: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = small.extract, 0

    def interrupted(images: Sequence[object]) -> list[ImageFeatures]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(images)  # type: ignore[arg-type]

    heard: list[int] = []
    monkeypatch.setattr(small, "extract", interrupted)
    with pytest.raises(KeyboardInterrupt):
        extract(find_sources([photos]), small, tmp_path / "out", on_done=heard.append)
    assert len(FeatureCache(tmp_path / "out")) == sum(heard) == 8


def test_interrupt_ends_with_130(tmp_path: Path) -> None:
    photos = draw(tmp_path / "photos", 200)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pipeline", "extract", str(photos), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--preset", "imagenet-grid"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # a test run in the background of a shell hands down an ignored SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    limit = time.monotonic() + 600
    while not (out / "cache.json").exists():
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 130, stderr
    assert "the same command continues" in stderr and "Traceback" not in stderr


def test_failures_are_noted_and_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    photos, out = draw(tmp_path / "photos", 3), tmp_path / "out"
    (photos / "bad.jpg").write_bytes(b"<html>")
    (photos / "notes.txt").write_text("no image")
    assert run("extract", photos, *OPTIONS, "--out", out, "--json") == 3
    facts = json.loads(capsys.readouterr().out)
    assert facts["done"] == 3 and facts["failed"][0]["reason"] == "not-an-image"
    (line,) = (out / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["image_id"] == "bad"
    Image.new("RGB", (30, 30), "red").save(photos / "bad.jpg")
    assert run("extract", photos, *OPTIONS, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "1 image extracted, 3 already there, 0 failed" in printed
    assert f"next: pipeline train --features {out}" in printed
    assert (out / "failures.jsonl").read_text() == ""
    assert len(FeatureCache(out)) == 4


def test_other_settings_are_refused(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run("extract", photos, *OPTIONS, "--out", tmp_path / "out") == 0
    assert FeatureCache(tmp_path / "out").meta["settings"]["size"] == 64  # as overridden
    assert run("extract", photos, *OPTIONS, "-o", "size=96", "--out", tmp_path / "out") == 1
    assert "settings.size: 64 / 96" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["extract"], 2, "INPUTS, --preset, --out missing"),
        (["extract", "PHOTOS", "--preset", "imagenet-gird", "--out", "x"], 2, "did you mean"),
        (["extract", "PHOTOS", *OPTIONS, "-o", "sise=1", "--out", "x"], 2, "did you mean 'size'"),
        (["extract", "PHOTOS", *OPTIONS, "-o", "size=65", "--out", "x"], 2, "multiple of 32"),
        (["extract", "absent", *OPTIONS, "--out", "x"], 2, "does not exist"),
        (["extract", "PHOTOS", "--preset", "imagenet-regions", "--out", "x"], 2, "add --boxes"),
        (["extract", "PHOTOS", *OPTIONS, "--out", "/dev/null/x"], 1, "cannot be written"),
        (["extract", "PHOTOS", *OPTIONS, "--out", __file__], 2, "test_extract.py' is a file"),
    ],
)
def test_exit_codes(
    photos: Path, capsys: pytest.CaptureFixture, args: list[str], code: int, message: str
) -> None:
    assert run(*(photos if a == "PHOTOS" else a for a in args)) == code
    assert message in capsys.readouterr().err


def test_captions_are_no_images(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "dataset.json").write_text("{}")
    assert run("extract", tmp_path / "dataset.json", *OPTIONS, "--out", tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert "dataset.json: is JSON, wanted images: a folder" in message
    assert not (tmp_path / "out").exists()


def test_no_usable_image_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    assert run("extract", tmp_path / "a.jpg", *OPTIONS, "--out", tmp_path / "out") == 1
    assert "a.jpg: empty-file" in capsys.readouterr().err


def test_ten_failures_are_told_and_the_others_counted(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for number in range(12):
        (tmp_path / f"empty{number}.jpg").write_bytes(b"")
    assert run("extract", photos, tmp_path, *OPTIONS, "--out", tmp_path / "out") == 3
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(told) == 11 and told[-1] == "failed: and 2 more"


def test_dry_run_writes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    assert run("extract", photos, *OPTIONS, "--out", out, "--dry-run", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["already"], facts["failed"]) == (10, 0, [])
    assert facts["bytes"] == 10 * 4 * (1280 * 2 + 16)
    cut = tmp_path / "cut.png"
    cut.write_bytes((photos / "p000.png").read_bytes()[:-200])
    assert run("extract", photos, cut, *OPTIONS, "--out", out, "--dry-run", "--json") == 0
    bad = {"image_id": "cut", "file": str(cut), "reason": "truncated"}
    assert json.loads(capsys.readouterr().out) == {**facts, "images": 11, "failed": [bad]}
    assert run("extract", photos, cut, *OPTIONS, "--out", out, "--dry-run") == 0
    assert f"cannot be used: {cut}: truncated: " in capsys.readouterr().err
    assert not out.exists()
    assert run("extract", photos / "p000.png", *OPTIONS, "--out", out) == 0
    assert run("extract", photos, *OPTIONS, "--out", out, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "10 images (ids p000, p001, p002, ...), 1 already there, 0 that" in shown
    assert len(FeatureCache(out)) == 1


def test_presets_are_listed(capsys: pytest.CaptureFixture) -> None:
    assert run("extract", "--list-presets", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    for name, numbers in listed.items():
        assert numbers == json.loads(json.dumps(asdict(presets.get(name))))
    assert run("extract", "--list-presets") == 0
    assert "limits.max_pixels = 100000000" in capsys.readouterr().out


def test_full_disk(photos: Path, tmp_path: Path) -> None:
    """A file size limit stands for a full disk: what was reported stays, the message says so."""
    script = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "sys.argv = ['pipeline', *sys.argv[1:]]\n"
        "runpy.run_module('pipeline', run_name='__main__')\n"
    )
    args = ["extract", str(photos), *OPTIONS, "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "cannot be written" in done.stderr and "make room" in done.stderr
    assert [p.name for p in (tmp_path / "out").glob("*shard*")] == []
    assert run(*args) == 0  # with room


def test_features_that_cannot_be_stored_are_a_failure(
    photos: Path, tmp_path: Path, small: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = small.extract

    def overflowing(images: Sequence[object]) -> list[ImageFeatures]:
        found = real(images)  # type: ignore[arg-type]
        found[0].streams["grids"] = found[0].streams["grids"] + 1e6
        return found

    monkeypatch.setattr(small, "extract", overflowing)
    summary = extract(find_sources([photos]), small, tmp_path / "out")
    assert (summary.done, [f.reason for f in summary.failures]) == (7, ["bad-features"] * 3)


def test_memory_stays_bounded(
    photos: Path, small: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are decoded at most two batches ahead of the network."""
    decoded = used = widest = 0
    real_prepare, real_extract = small.prepare, small.extract

    def prepare(source: Source) -> object:
        nonlocal decoded, widest
        decoded += 1
        widest = max(widest, decoded - used)
        return real_prepare(Source("p", photos / "p000.png"))

    def run_batch(images: Sequence[object]) -> list[ImageFeatures]:
        nonlocal used
        used += len(images)
        return real_extract(images)  # type: ignore[arg-type]

    monkeypatch.setattr(small, "prepare", prepare)
    monkeypatch.setattr(small, "extract", run_batch)
    records, _ = extract_in_memory([Source(str(n), Path("x")) for n in range(60)], small)
    assert len(records) == 60 and widest <= 4 * small.preset.batch


def test_a_locked_cache_is_refused(photos: Path, tmp_path: Path, small: Extractor) -> None:
    from extract.writer import CacheWriter

    with (
        CacheWriter(tmp_path / "out", small.meta, small.streams),
        pytest.raises(CacheError, match=f"process {os.getpid()}"),
    ):
        extract(find_sources([photos]), small, tmp_path / "out")


def test_prepared_images_are_stretched_upright_ones(
    tmp_path: Path, small: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.zeros((50, 200, 3), dtype=np.uint8)
    pixels[:, 100:] = 255
    image = UprightImage(pixels=pixels, width=200, height=50, mode="RGB", turned=True)
    monkeypatch.setattr("extract.extractor.read_image", lambda path, rules, limits: image)
    prepared = small.prepare(Source("a", tmp_path / "a"))
    assert (prepared.width, prepared.height) == (200, 50)
    assert prepared.pixels[:, :, 10].max() < -0.9 and prepared.pixels[:, :, 54].min() > 0.9
