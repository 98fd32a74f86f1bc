"""Checkpoints: known, downloaded with resume, taken over, converted."""

from __future__ import annotations

import hashlib
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
from safetensors.torch import load_file

from evaluate.paths import data_dir
from extract import weights
from extract.checkpoint import read_checkpoint
from extract.detector_presets import DETECTOR_PRESETS
from extract.errors import ExtractError
from extract.weights import Weights
from extract.weights_convert import convert
from extract.weights_fetch import fetch
from pipeline.cli import main

pytestmark = pytest.mark.usefixtures("quick_sync")
DATA = np.random.default_rng(0).bytes(3_000_000)


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
            self.send_response(206)
            last = len(server.data) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(server.data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", server.tag)
        self.send_header("Content-Type", server.kind)
        self.send_header("Content-Length", str(len(server.data) - start))
        self.end_headers()
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
    assert heard[0][0] > 1_000_000 and heard[-1] == (3_000_000, 3_000_000)
    facts = json.loads(wanted.path.with_name("w.pth.json").read_text())
    assert facts == {"source": wanted.url, "sha256": wanted.sha256, "bytes": 3_000_000}
    assert sorted(p.name for p in wanted.path.parent.iterdir()) == ["w.pth", "w.pth.json"]
    fetch(wanted)
    assert len(server.ranges) == 2  # it is there


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


def test_add_and_find(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ExtractError, match="pipeline weights fetch grid-x101; without a network"):
        weights.find_weights("grid-x101")
    given = tmp_path / "mine.pth"
    given.write_bytes(b"weights")
    assert run("weights", "add", "bua-c4-36", given) == 0  # by the preset's name
    kept = home / "caption-pipeline/weights/bua-caffe-r101-36/bua-caffe-frcn-r101-k36.pth"
    assert weights.find_weights("bua-c4-36") == kept and kept.read_bytes() == b"weights"
    assert run("weights", "list") == 0
    assert f"here: {kept}" in capsys.readouterr().out
    assert run("weights", "list", "--json") == 0
    facts = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert facts["bua-caffe-r101-36"]["path"] == str(kept)
    assert facts["grid-r50"]["path"] is None
    given.write_bytes(b" <!DOCTYPE html><title>Sign in</title>")
    assert run("weights", "add", "grid-r50", given) == 1
    assert "mine.pth: is a web page, wanted R-50.pth" in capsys.readouterr().err
    given.write_bytes(b"other")
    assert run("weights", "add", "resnet101", given) == 1
    assert "wanted 63fe2227...: it is damaged" in capsys.readouterr().err
    assert run("weights", "add", "grid-r51", given) == 1
    assert "did you mean 'grid-r50'" in capsys.readouterr().err


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
    with pytest.raises(ExtractError, match="wanted a name that ends in"):
        convert(tmp_path / "w.pkl", tmp_path / "w.bin")


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in args])
    return int(caught.value.code or 0)
