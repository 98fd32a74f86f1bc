"""Given word vectors: the file they come from, and the captioner that they are frozen in."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
import torch

from caption.errors import CaptionError
from caption.registry import MODELS
from caption.transformer import Transformer, TransformerConfig
from caption.vector_file import read_vectors
from caption.vocabulary import BOS
from caption.word_vectors import VectorWords
from tests.caption.toy import WIDTH, no_gradients, random_features

TEXT = "the 1 2 -3\n. . 4 5e-1 6\ncat 7 8 9\ncat 0 0 0\n\nnaïve 1 1 1\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_words_asked_for_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "glove.txt", TEXT)
    found = read_vectors(path, ["cat", "naïve", "dog", ". ."], 3)
    assert found.vectors == {"cat": [7, 8, 9], "naïve": [1, 1, 1], ". .": [4, 0.5, 6]}
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    packed = tmp_path / "glove.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    assert read_vectors(packed, ["cat"], 3).vectors == {"cat": [7, 8, 9]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a 1 2 3\nb 1 2\n", "line 2: has 2 values, wanted a word and 3 numbers"),
        ("a 1 2 3\nb 1 2 3 4\n", "line 2: has 4 values"),
        ("400000 3\na 1 2 3\n", "line 1: has 1 values"),
        ("a 1 2 3\nunasked 1 x 3\n", "line 2: 'x' stands there, wanted a number"),
        ("a 1 nan 3\n", "line 1: 'nan' stands there"),
        ("a 1 1e999 3\n", "line 1: '1e999' stands there"),
        ("a 1 2e 3\n", "line 1: '2e' stands there"),
        ("a\t1\t2\t3\n", "line 1: has 0 values"),
    ],
)
def test_a_wrong_line_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "glove.txt", text)
    with pytest.raises(CaptionError, match=said) as error:
        read_vectors(path, ["a", "b"], 3)
    assert str(path) in str(error.value)


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode())[:-12])
    with pytest.raises(CaptionError, match=r"glove.txt.gz: cannot be read"):
        read_vectors(path, ["a"], 3)


def captioner(vectors: int | None = 6) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        width=16, heads=2, feed_forward=24, encoder_layers=1, decoder_layers=1, vectors=vectors
    )
    return Transformer(config, in_width=WIDTH, vocabulary=11).eval()


def test_logits_are_products_with_the_vectors() -> None:
    """logits = (V h) E^T and x = W E[word], E with frozen and learned rows."""
    model, given = captioner(), torch.randn(11, 6)
    words = model.words
    assert isinstance(words, VectorWords)
    words.give(given, [0, 1, 2, 3, 7])
    table = given.index_copy(0, words.rows, words.learned.detach())  # (V, E)
    tokens = torch.tensor([[BOS, 5, 7], [BOS, 10, 4]])
    torch.testing.assert_close(words(tokens), words.project(table[tokens]))
    hidden = torch.randn(2, 3, 16)
    wanted = model.output.project(hidden) @ table.T  # type: ignore[operator]
    torch.testing.assert_close(model.output(hidden), wanted)


def test_training_changes_the_learned_rows_alone() -> None:
    model, given = captioner(), torch.randn(11, 6)
    words = model.words
    assert isinstance(words, VectorWords)
    words.give(given, [0, 1, 2, 3, 7])
    frozen, learned = words.vectors.clone(), words.learned.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    tokens = torch.tensor([[BOS, 5, 7], [BOS, 10, 4]])
    logits = model(model.encode(random_features(2)), tokens)  # (R, T, V)
    (-logits.log_softmax(-1)[..., 8].sum()).backward()
    assert no_gradients(model) == []
    optimizer.step()
    assert torch.equal(words.vectors, frozen) and not torch.equal(words.learned, learned)
    assert torch.equal(frozen[[4, 5, 6, 8, 9, 10]], given[[4, 5, 6, 8, 9, 10]])
    assert not frozen[[0, 1, 2, 3, 7]].any()
    assert "words.vectors" in model.state_dict() and "output.shared" not in str(model.state_dict())


@pytest.mark.parametrize("name", list(MODELS))
def test_any_captioner_may_have_them(name: str) -> None:
    config = MODELS[name].config(vectors=6, width=16, heads=2, encoder_layers=1, decoder_layers=1)
    streams = ("grids", "regions", "pyramid_high", "pyramid_low")
    model = MODELS[name].build(config, {stream: WIDTH for stream in streams}, 11).eval()
    model.words.give(torch.randn(11, 6), [0, 1, 2, 3])  # type: ignore[union-attr,operator]
    log_probs, _ = model.step(
        torch.tensor([BOS, BOS]), model.start(model.encode(random_features(2)))
    )
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2))


def test_a_width_of_nothing_is_refused() -> None:
    with pytest.raises(CaptionError, match="model.vectors is 0"):
        captioner(0)
