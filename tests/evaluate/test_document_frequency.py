"""Document-frequency tables: counting, saving, and public pickles read without running them."""

from __future__ import annotations

import os
import pickle
import stat
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate.cider import DocumentFrequency
from evaluate.errors import EvaluateError

REFERENCES = {1: ["a b a", "a b"], 2: ["b c"]}


def test_documents_are_images_or_captions() -> None:
    images = DocumentFrequency.build(REFERENCES)
    captions = DocumentFrequency.build(REFERENCES, "caption")
    assert (images.documents, captions.documents) == (2, 3)
    assert (images.counts["a"], captions.counts["a"]) == (1, 2)
    assert (images.counts["b"], captions.counts["b"]) == (2, 3)
    assert images.counts["a b a"] == 1
    assert "c" in images.counts and "a c" not in images.counts


def test_words_become_ids_and_the_end_is_counted() -> None:
    table = DocumentFrequency.build(
        REFERENCES, "image", eos="0", ids={"a": "1", "b": "2"}, unknown="9"
    )
    assert table.counts == {
        **{"1": 1, "2": 2, "0": 2, "9": 1},
        **{"1 2": 1, "2 1": 1, "1 0": 1, "2 0": 1, "2 9": 1, "9 0": 1},
        **{"1 2 1": 1, "2 1 0": 1, "1 2 0": 1, "2 9 0": 1, "1 2 1 0": 1},
    }


def test_the_table_is_synced_before_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "df.npz", list[bool]()

    def fsync(handle: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        assert path.exists() == synced[-1]

    monkeypatch.setattr(os, "fsync", fsync)
    DocumentFrequency.build(REFERENCES).save(path)
    assert synced == [False, True]


@pytest.mark.parametrize("style", [{}, {"eos": "0", "ids": {"a": "1", "b": "2"}, "unknown": "9"}])
def test_a_saved_table_is_the_same(tmp_path: Path, style: dict[str, Any]) -> None:
    table = DocumentFrequency.build({1: ["caf\u00e9 \u00a0 x"], **REFERENCES}, "caption", **style)
    table.save(tmp_path / "df.npz")
    loaded = DocumentFrequency.load(tmp_path / "df.npz")
    assert loaded.counts == table.counts
    assert (loaded.documents, loaded.document) == (table.documents, table.document)
    assert loaded.style == table.style
    assert loaded.sha256 == table.sha256
    assert [path.name for path in tmp_path.iterdir()] == ["df.npz"]


def test_the_hash_tells_tables_apart() -> None:
    tables = [
        DocumentFrequency.build(REFERENCES),
        DocumentFrequency.build(REFERENCES, "caption"),
        DocumentFrequency.build(REFERENCES, eos="0"),
        DocumentFrequency.build({**REFERENCES, 3: ["a"]}),
    ]
    assert len({table.sha256 for table in tables}) == len(tables)
    reversed_order = {key: REFERENCES[key] for key in reversed(REFERENCES)}
    assert DocumentFrequency.build(reversed_order).sha256 == tables[0].sha256


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "df.npz"
    with pytest.raises(EvaluateError, match="df.npz: cannot be read"):
        DocumentFrequency.load(path)
    path.write_bytes(b"nothing of the sort")
    with pytest.raises(EvaluateError, match="df.npz: not a document-frequency table"):
        DocumentFrequency.load(path)
    DocumentFrequency.build(REFERENCES).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EvaluateError, match="df.npz: not a document-frequency table"):
        DocumentFrequency.load(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(EvaluateError, match="df.npz: not a document-frequency table"):
        DocumentFrequency.load(path)


@pytest.mark.parametrize("name", ["idxs.p", "captions.json", "array.npy", "objects.npz", "empty"])
def test_other_files_are_no_tables(tmp_path: Path, name: str) -> None:
    """The message says what is wanted and how to get it, and never advises to unpickle."""
    path = tmp_path / name
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", meta=np.array([{}], dtype=object))
    (tmp_path / "idxs.p").write_bytes(pickle.dumps({"document_frequency": {}, "ref_len": 1}))
    (tmp_path / "captions.json").write_text("[]")
    (tmp_path / "empty").touch()
    with pytest.raises(EvaluateError) as caught:
        DocumentFrequency.load(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: not a document-frequency table (")
    assert "wanted an .npz that DocumentFrequency.save wrote; docs/evaluation.md" in said
    assert "pickle" not in said.removeprefix(str(path))


def test_wrong_calls_are_named() -> None:
    with pytest.raises(EvaluateError, match="no references"):
        DocumentFrequency.build({})
    with pytest.raises(EvaluateError, match="document is 'line'"):
        DocumentFrequency({}, 1, document="line")  # type: ignore[arg-type]
    with pytest.raises(EvaluateError, match="number of documents is 0"):
        DocumentFrequency({}, 0, document="image")
    with pytest.raises(EvaluateError, match="give both"):
        DocumentFrequency.build(REFERENCES, ids={"a": "1"})
    with pytest.raises(EvaluateError, match="not a token"):
        DocumentFrequency.build(REFERENCES, eos="end of line")


PUBLIC = {("1",): 2.0, ("1", "2"): 1, ("1", "2", "0"): 1}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("kind", [dict, Counter, OrderedDict, lambda d: defaultdict(float, d)])
def test_public_pickles(tmp_path: Path, protocol: int, kind: Any) -> None:
    path = tmp_path / "train-idxs.p"
    stored = {"document_frequency": kind(PUBLIC), "ref_len": 40.0}
    path.write_bytes(pickle.dumps(stored, protocol))
    table = DocumentFrequency.from_pickle(path, eos="0")
    assert table.counts == {"1": 2, "1 2": 1, "1 2 0": 1}
    assert (table.documents, table.document, table.style.eos) == (40.0, "image", "0")


class Trap:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("sprung"),)


def test_pickles_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trap.p"
    path.write_bytes(pickle.dumps({"document_frequency": {}, "ref_len": Trap()}))
    with pytest.raises(EvaluateError, match=r"trap\.p: refused, the pickle asks for pathlib"):
        DocumentFrequency.from_pickle(path)
    assert not (tmp_path / "sprung").exists()
    path.write_bytes(b"cos\nsystem\n(S'touch sprung'\ntR.")
    with pytest.raises(EvaluateError, match=r"asks for os\.system"):
        DocumentFrequency.from_pickle(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ([1], "holds list"),
        ({"ref_len": 1}, "holds \\['ref_len'\\]"),
        ({"document_frequency": {("1",): 1}, "ref_len": "many"}, "ref_len is 'many'"),
        ({"document_frequency": {("a b",): 1}, "ref_len": 1}, "has the key"),
        ({"document_frequency": {"a": 1}, "ref_len": 1}, "has the key 'a'"),
        ({"document_frequency": {("a",): 0.5}, "ref_len": 1}, "is 0.5, wanted a count"),
        ({"document_frequency": [], "ref_len": 1}, "document_frequency is list"),
    ],
)
def test_odd_pickles_are_named(tmp_path: Path, stored: Any, message: str) -> None:
    path = tmp_path / "odd.p"
    path.write_bytes(pickle.dumps(stored))
    with pytest.raises(EvaluateError, match=message):
        DocumentFrequency.from_pickle(path)


def test_broken_pickles_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.p"
    for content in (b"", b"nonsense", pickle.dumps(PUBLIC)[:-5]):
        path.write_bytes(content)
        with pytest.raises(EvaluateError, match="broken.p: not a readable pickle"):
            DocumentFrequency.from_pickle(path)
    with pytest.raises(EvaluateError, match="none.p: cannot be read"):
        DocumentFrequency.from_pickle(tmp_path / "none.p")
