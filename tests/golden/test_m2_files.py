"""What the Meshed-Memory release does beside its model: text, regions, rates, keys, ensembles."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from safetensors.torch import load_file

from caption.batches import padded
from caption.blocks import sinusoids
from caption.config import CrossEntropyConfig, TrainingConfig
from caption.decode import beam_search
from caption.ensemble import Ensemble
from caption.features import collate
from caption.importers import meshed_memory as release
from caption.models.meshed_memory import SLOTS, FixedRows, MeshedMemoryConfig
from caption.schedules import noam
from caption.spacy_tokenizer import spacy_tokenize
from caption.transformer import Transformer, count_parameters
from caption.vocabulary import BOS, PAD, SPECIALS, Vocabulary
from extract.cache import ImageFeatures
from tests.golden.test_m2 import (
    ACTIVATIONS,
    CPU,
    STEPS,
    Fixed,
    beam_files,
    build,
    close,
    config_of,
    features_of,
    golden,
    same_beams,
    trainer,
)


@pytest.fixture(scope="module")
def folder(golden_dir: Path) -> Path:
    return golden(golden_dir)


def read(folder: Path, name: str) -> Any:
    path = folder / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    return json.loads(path.read_text())


def with_words(known: dict[int, str]) -> Vocabulary:
    """A vocabulary that has these words at these places."""
    words = [f"other{n}" for n in range(max(known) + 1)]
    for number, word in known.items():
        words[number] = word
    words[: len(SPECIALS)] = SPECIALS
    return Vocabulary(words)


def test_words_and_ids_of_captions(folder: Path) -> None:
    text = read(folder, "text.json")
    pytest.importorskip("spacy")
    found = list(spacy_tokenize(text["captions"]))
    assert [list(words) for words in found] == text["tokens"]
    known = {
        number: word
        for words, ids in zip(text["tokens"], text["ids_padded_batch"], strict=True)
        for word, number in zip(words, ids[1:], strict=False)
        if number
    }
    vocabulary = with_words(known)
    rows = [vocabulary.encode(words) for words in found]
    assert padded(rows).tolist() == text["ids_padded_batch"]


def test_vocabulary(folder: Path) -> None:
    wanted = read(folder, "text.json")["vocab_build"]
    pytest.importorskip("spacy")
    words = spacy_tokenize(wanted["corpus"])
    built = Vocabulary.build(words, min_count=wanted["min_freq"])
    assert list(built.words) == wanted["itos"]


def test_ids_to_captions_with_and_without_collapsing(folder: Path) -> None:
    """Except that the release also writes <pad> and <bos> where a captioner says them."""
    told = read(folder, "text.json")["decode"]
    known = {
        number: word
        for ids, words in zip(told["ids"], told["words"], strict=True)
        for number, word in zip(ids, words, strict=False)
    }
    vocabulary = with_words(known)
    compared = 0
    for n, ids in enumerate(told["ids"]):
        words = vocabulary.decode(ids)
        if {PAD, BOS}.isdisjoint(ids):
            compared += 1
            assert words == told["words"][n]
            assert " ".join(words) == told["joined_no_collapse"][n]
            assert " ".join(w for w, _ in groupby(words)) == told["collapsed_for_scoring"][n]
    assert compared >= len(told["ids"]) - 1


def test_learning_rates(folder: Path, tmp_path: Path) -> None:
    for name, told in read(folder, "lr.json").items():
        width, steps = (int(part[1:]) for part in name.split("_"))
        peak = (width * steps) ** -0.5
        for step, rate in told["lambda_at_scheduler_step"].items():
            found = noam(int(step) + 1, peak=peak, steps=steps)
            assert found == pytest.approx(rate, rel=1e-12), (name, step)
        key = next(key for key in told if key.startswith("epoch_iter_lr"))
        per_epoch = int(key.split("_with_")[1].split("_")[0])
        xe = CrossEntropyConfig(schedule="m2", warmup=steps, learning_rate=peak)
        model = Transformer(MeshedMemoryConfig(width=8), in_width=4, vocabulary=9, slots=SLOTS)
        training = trainer(model, TrainingConfig(xe=xe), tmp_path, Fixed([]))
        for epoch, iteration, rate in told[key]:
            training.at.epoch = epoch
            training.at.updates = epoch * per_epoch + iteration
            assert training._rate("xe") == pytest.approx(rate, rel=1e-12), (epoch, iteration)


def test_sinusoids(folder: Path) -> None:
    for name, wanted in load_file(folder / "sinusoid.safetensors").items():
        rows, width = wanted.shape
        close(sinusoids(rows, width)[1:], wanted[1:], ACTIVATIONS, name)  # positions count from 1


def test_regions_cut_and_filled_up(folder: Path) -> None:
    told = read(folder, "regions.json")
    records = []
    with h5py.File(folder / "regions.hdf5") as file:
        for image in told["image_ids"]:
            rows = file[f"{image}_features"][()]
            records.append(
                ImageFeatures(
                    image_id=str(image),
                    width=1,
                    height=1,
                    streams={"regions": rows},
                    boxes={"regions": file[f"{image}_boxes"][()]},
                    grid_shape={},
                )
            )
    limit = told["max_detections"]
    config = MeshedMemoryConfig(width=8, rows=limit, attend_padding=True)
    fixed = FixedRows(config, told["d_in"]).fixed(collate(records, ["regions"]), limit)
    wanted = load_file(folder / "regions_expected.safetensors")["batch"]
    assert torch.equal(fixed.rows["regions"], wanted)
    counts = [min(count, limit) for count in told["stored_rows"]]
    assert fixed.mask["regions"].sum(dim=1).tolist() == counts


def test_names_and_shapes_of_the_full_checkpoint(folder: Path) -> None:
    told = read(folder, "keys.json")
    entries = {entry["name"]: entry for entry in told["entries"]}
    config = MeshedMemoryConfig()
    with torch.device("meta"):
        model = Transformer(config, in_width=2048, vocabulary=told["vocab_size"], slots=SLOTS)
    own = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    names = release.names(config)
    assert set(names) == set(own)
    numbers = {name for name, entry in entries.items() if entry["kind"] == "parameter"}
    assert set(names.values()) == numbers
    for name, official in names.items():
        assert own[name] == entries[official]["shape"], official
    left_out = set(entries) - numbers
    assert {name.rpartition(".")[2] for name in left_out} <= set(release._STATE)
    assert count_parameters(model) == told["n_params_trainable"]
    plain = MeshedMemoryConfig(memory=0)
    with torch.device("meta"):
        model = Transformer(plain, in_width=2048, vocabulary=told["vocab_size"], slots=SLOTS)
    assert count_parameters(model) + model.positions.numel() == 38_316_544  # without memory


def test_ensemble_of_mean_log_probabilities(folder: Path) -> None:
    places = sorted({path.parent for path in folder.glob("*/weights_0.safetensors")})
    if not places:
        pytest.skip(f"no ensembles in {folder}")
    for place in places:
        sizes, config = config_of(place, "weights_0")
        paths = sorted(place.glob("weights_*.safetensors"))
        members = [build(path, sizes, config) for path in paths]
        rows = load_file(place / "inputs.safetensors")["features"]
        features = features_of(rows, (rows != 0).any(dim=-1).sum(dim=-1))
        together = Ensemble(members, "log_probabilities").eval()
        with torch.no_grad():
            state = together.start(together.encode(features))
            for beams, name in beam_files(place, "beam"):
                found = beam_search(together.step, state, len(rows), beams, STEPS, CPU)
                wanted = load_file(place / f"{name}.safetensors")
                same_beams(found, wanted, f"{place.name} {name}")
