"""Checkpoints: known, downloaded with resume, taken over, converted."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from evaluate.paths import data_dir
from extract import weights
from extract.checkpoint import read_checkpoint
from extract.detector_presets import DETECTOR_PRESETS
from extract.errors import ExtractError
from extract.weights import Weights
from extract.weights_convert import convert
from extract.weights_fetch import fetch
from pipeline.cli import main
from tests.extract.detector_toy import small, write_weights

pytestmark = pytest.mark.usefixtures("quick_sync")


def _checkpoint() -> bytes:
    """A file of PyTorch's, of some 3 MB of random numbers."""
    numbers = np.random.default_rng(0).standard_normal(750_000).astype(np.float32)
    torch.save({"model": {"a": torch.from_numpy(numbers)}}, buffer := io.BytesIO())
    return buffer.getvalue()


DATA = _checkpoint()


class Server(ThreadingHTTPServer):
    """Serves DATA with ranges; what it was asked for is noted."""

    data, tag, kind = DATA, '"v1"', "application/octet-stream"
    cut: int | None = None  # bytes after which the connection breaks
    ranges: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.ranges.append(asked)
        if self.path == "/gone":
            self.send_error(404)
            return
        start = 0
        if asked and self.headers.get("If-Range") == server.tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.data)}")
                self.end_headers()
                return
            self.send_response(206)
            last = len(server.data) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(server.data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", server.tag)
        self.send_header("Content-Type", server.kind)
        self.send_header("Content-Length", str(len(server.data) - start))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # who has seen enough hangs up
            self.wfile.write(server.data[start : server.cut])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.ranges = []
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def entry(server: Server, path: str = "/w.pth", sha256: str | None = None) -> Weights:
    return Weights(
        name="toy",
        file="w.pth",
        page="the page",
        licence="MIT",
        note="a toy",
        url=f"http://127.0.0.1:{server.server_port}{path}",
        sha256=hashlib.sha256(DATA).hexdigest() if sha256 is None else sha256,
    )


def test_every_preset_has_its_weights_and_no_other() -> None:
    listed = [preset for each in weights.catalogue().values() for preset in each.presets]
    assert sorted(listed) == sorted(DETECTOR_PRESETS)
    for name in DETECTOR_PRESETS:
        assert name in weights.get(name).presets or weights.get(name).name == name
    for each in weights.catalogue().values():
        assert each.url is None or re.match(r"https?://", each.url)
        assert each.sha256 is None or re.fullmatch(r"[0-9a-f]{6,64}", each.sha256)
        assert (
            (each.url or "").partition("?")[0].endswith(each.file)
            or "MILVLG" in each.page
            or (each.url is None)
        )


def test_kept_where_setup_keeps_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weights.weights_dir() == data_dir("weights")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", value)
        assert weights.weights_dir() == data_dir("weights")


def test_a_download_goes_on_where_it_stopped(server: Server) -> None:
    wanted, server.cut = entry(server), 1_000_000
    with pytest.raises(ExtractError, match="the same command goes on.*weights add toy FILE"):
        fetch(wanted)
    assert not wanted.path.exists()
    server.cut, heard = None, list[tuple[int, int | None]]()
    assert fetch(wanted, lambda *n: heard.append(n)) == wanted.path
    assert wanted.path.read_bytes() == DATA
    assert server.ranges == [None, "bytes=1000000-"]
    assert heard[0][0] > 1_000_000 and heard[-1] == (len(DATA), len(DATA))
    facts = json.loads(wanted.path.with_name("w.pth.json").read_text())
    assert facts == {"source": wanted.url, "sha256": wanted.sha256, "bytes": len(DATA)}
    assert sorted(p.name for p in wanted.path.parent.iterdir()) == ["w.pth", "w.pth.json"]
    fetch(wanted)
    assert len(server.ranges) == 2  # it is there


def test_a_stop_during_the_check_costs_no_second_download(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> str:
        raise KeyboardInterrupt

    wanted = entry(server)
    with monkeypatch.context() as patch:
        patch.setattr("extract.weights_fetch.check", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch(wanted)
    assert fetch(wanted).read_bytes() == DATA
    assert server.ranges == [None, f"bytes={len(DATA)}-"]
    assert sorted(p.name for p in wanted.path.parent.iterdir()) == ["w.pth", "w.pth.json"]


def test_a_part_longer_than_the_file_is_begun_again(server: Server) -> None:
    wanted, server.cut = entry(server), 1_000_000
    with pytest.raises(ExtractError, match="goes on"):
        fetch(wanted)
    server.cut = None
    with wanted.path.with_name("w.pth.part").open("ab") as part:
        part.write(DATA)
    assert fetch(wanted).read_bytes() == DATA
    assert server.ranges == [None, f"bytes={len(DATA) + 1_000_000}-", None]


def test_a_changed_file_is_begun_again(server: Server) -> None:
    wanted, server.cut = entry(server), 1_000_000
    server.data, server.tag = b"old" * 1_000_000, '"v0"'
    with pytest.raises(ExtractError, match="goes on"):
        fetch(wanted)
    server.data, server.tag, server.cut = DATA, '"v1"', None
    fetch(wanted)
    assert wanted.path.read_bytes() == DATA and server.ranges == [None, "bytes=1000000-"]


def test_what_is_no_such_file(server: Server) -> None:
    with pytest.raises(ExtractError, match=r"sha256 is [0-9a-f]{64}, wanted abcdef\.\.\.: it is"):
        fetch(entry(server, sha256="abcdef"))
    with pytest.raises(ExtractError, match="/gone: the server says 404 Not Found; get w.pth from"):
        fetch(entry(server, "/gone"))
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(ExtractError, match="gives a web page, not a file; get w.pth"):
        fetch(entry(server))
    assert not [p for p in entry(server).path.parent.iterdir() if p.suffix == ".pth"]


def test_without_a_network(server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = replace(entry(server), url=f"http://127.0.0.1:{free.getsockname()[1]}/w.pth")
    with pytest.raises(ExtractError) as caught:
        fetch(closed)
    for part in ("cannot be downloaded", str(closed.url), "weights add toy FILE", str(closed.path)):
        assert part in str(caught.value)
    with pytest.raises(ExtractError, match="lxmert-frcnn has no address .* pytorch_model.bin from"):
        fetch(weights.get("lxmert-frcnn"))


def small_weights(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a small network, which takes the place of the preset's."""
    preset = small(name)
    monkeypatch.setitem(DETECTOR_PRESETS, name, preset)
    return write_weights(preset, path)


def test_add_and_find(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExtractError, match="pipeline weights fetch grid-x101; without a network"):
        weights.find_weights("grid-x101")
    first = weights.get("bua-c4-36").presets[0]
    given = small_weights(first, tmp_path / "my own.safetensors", monkeypatch)
    kept = home / "caption-pipeline/weights/bua-caffe-r101-36/bua-caffe-frcn-r101-k36.pth"
    kept.parent.mkdir(parents=True)
    kept.with_name(f".{kept.name}.999999.tmp").write_bytes(b"left by a kill")
    assert run("weights", "add", "bua-c4-36", given) == 0  # by the preset's name
    assert sorted(p.name for p in kept.parent.iterdir()) == [kept.name, f"{kept.name}.json"]
    assert weights.find_weights("bua-c4-36") == kept and kept.read_bytes() == given.read_bytes()
    assert run("weights", "list") == 0
    assert f"here: {kept}" in capsys.readouterr().out
    assert run("weights", "list", "--json") == 0
    facts = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert facts["bua-caffe-r101-36"]["path"] == str(kept)
    assert facts["grid-r50"]["path"] is None
    assert run("weights", "add", "bua-c4-36", given) == 1
    assert f"add bua-caffe-r101-36 '{given}' --replace" in capsys.readouterr().err
    kept.write_bytes(b"rubbish")
    assert run("weights", "add", "bua-c4-36", given, "--replace") == 0
    assert kept.read_bytes() == given.read_bytes()
    for command in (("add", "grid-r51", given), ("fetch", "grid-r51")):
        assert run("weights", *command) == 2
        assert "did you mean 'grid-r50'? There are butd-36," in capsys.readouterr().err


def test_add_refuses_what_is_not_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "mine.pth"

    def refused(name: str, message: str) -> None:
        assert run("weights", "add", name, given) == 1
        said = capsys.readouterr().err
        assert f"{given}: " in said and message in said and "weights add" in said
        assert not weights.get(name).path.exists()

    given.write_bytes(b" <!DOCTYPE html><title>Sign in</title>")
    refused("grid-r50", "is a web page; wanted R-50.pth for grid-r50;")
    given.write_text('[{"image_id": 1, "caption": "a dog"}]')
    refused("grid-x101", "no readable checkpoint: neither safetensors")
    refused("lxmert-frcnn", "no readable checkpoint: neither safetensors")  # of no preset
    preset = small("grid-r50")
    monkeypatch.setitem(DETECTOR_PRESETS, "grid-r50", preset)
    whole = load_file(write_weights(preset, tmp_path / "whole.safetensors"))
    name, *_ = [key for key in whole if key.startswith("backbone.res5")]
    save_file({k: t for k, t in whole.items() if k != name}, given)
    refused("grid-r50", f"does not fit the detector; parameters 1 missing: {name}; wanted R-50.pth")
    save_file({**whole, name: torch.zeros(1, 2)}, given)
    refused("grid-r50", f"1 of another shape: {name} (1, 2), wanted (")
    save_file({**whole, "backbone.more": torch.zeros(1)}, given)
    refused("grid-r50", "1 unexpected: backbone.more")
    preset = small("resnet101-c5")
    monkeypatch.setitem(DETECTOR_PRESETS, "resnet101-c5", preset)
    write_weights(preset, given)
    refused("resnet101", "wanted 63fe2227...: it is damaged")


def test_rubbish_that_is_kept_is_noticed_and_can_be_replaced(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    wanted = entry(server)
    wanted.path.parent.mkdir(parents=True)
    wanted.path.write_text('[{"image_id": 1, "caption": "a dog"}]')
    with pytest.raises(ExtractError) as caught:
        fetch(wanted)
    assert f"{wanted.path}: no readable checkpoint" in str(caught.value)
    assert "or pipeline weights fetch toy --replace" in str(caught.value) and not server.ranges
    assert fetch(wanted, replace=True).read_bytes() == DATA
    server.data, server.tag = b'[{"image_id": 1}]', '"v2"'
    with pytest.raises(ExtractError, match="/w.pth: no readable checkpoint"):
        fetch(wanted, replace=True)
    assert wanted.path.read_bytes() == DATA  # the good one stays
    kept = weights.get("grid-x101").path
    kept.parent.mkdir(parents=True)
    kept.write_text('[{"image_id": 1, "caption": "a dog"}]')
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    args = [tmp_path / "a.png", "--preset", "grid-x101", "--out", tmp_path / "out"]
    assert run("extract", *args) == 1
    said = capsys.readouterr().err
    assert f"{kept}: no readable checkpoint" in said
    assert "type pipeline weights add grid-x101 FILE --replace, or pipeline weights fetch" in said
    assert run("extract", *args, "--weights", tmp_path / "a.png") == 1
    assert "give another file as --weights" in capsys.readouterr().err


def test_extract_asks_for_weights(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    args = [tmp_path / "a.jpg", "--preset", "bua-d2-x152", "--out", tmp_path / "out"]
    assert run("extract", *args) == 1
    assert "pipeline weights fetch bua-d2-x152" in capsys.readouterr().err


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    torch.save({"model": {"a": whole, "b": whole[1], "c": whole.T}}, tmp_path / "w.pth")
    assert run("weights", "convert", tmp_path / "w.pth") == 0
    assert "3 tensors, 28 numbers" in capsys.readouterr().out
    found = load_file(tmp_path / "w.safetensors")
    assert torch.equal(found["b"], whole[1]) and torch.equal(found["c"], whole.T)
    facts = json.loads((tmp_path / "w.json").read_text())
    assert facts["tensors"]["c"] == {"shape": [4, 3], "dtype": "torch.float32"}
    assert facts["sha256"] == hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    arrays = {"model": {"a": np.ones((2, 3), "f4")}, "__author__": "someone"}
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(arrays, protocol=2))
    convert(tmp_path / "w.pkl", tmp_path / "p" / "x.safetensors")
    assert torch.equal(read_checkpoint(tmp_path / "p" / "x.safetensors")["a"], torch.ones(2, 3))
    with pytest.raises(ExtractError, match="is there already"):
        convert(tmp_path / "w.pkl", tmp_path / "w.safetensors")
    (tmp_path / "mine.json").write_text("[]")
    with pytest.raises(ExtractError, match="mine.json is there already"):
        convert(tmp_path / "w.pkl", tmp_path / "mine.safetensors")
    assert (tmp_path / "mine.json").read_text() == "[]"
    with pytest.raises(ExtractError, match="wanted a name that ends in"):
        convert(tmp_path / "w.pkl", tmp_path / "w.bin")


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in args])
    return int(caught.value.code or 0)
