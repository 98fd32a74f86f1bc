"""Every shipped recipe is loaded, built, stepped once and decoded once; bases and overlays.

The tiny overlay runs in the fast tests through the trainer itself; full size is marked slow.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from caption.batches import Batch
from caption.captioner import Captioner
from caption.data import read_captions
from caption.decode import beam_search
from caption.features import Features
from caption.losses import cross_entropy
from caption.registry import entry
from caption.trainer import Trainer
from caption.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary
from extract.cache import FeatureCache
from pipeline import recipe as recipes
from pipeline.commands.train import command
from pipeline.errors import WrongUsage
from pipeline.texts import texts_of
from pipeline.word_vectors import find_vectors
from tests.caption.toy import write_glove, write_toy

CPU = torch.device("cpu")
STREAMS = {  # stream -> width, grid shape of an image
    "regions": (2048, (1, 36)),
    "grids": (2048, (7, 7)),
    "pyramid_high": (256, (14, 14)),
    "pyramid_low": (256, (28, 28)),
}
COCO_WORDS = 10201


def features(needs: tuple[str, ...], images: int) -> Features:
    random = torch.Generator().manual_seed(0)
    rows, mask, boxes, shapes = {}, {}, {}, {}
    for stream in needs:
        width, shape = STREAMS[stream]
        count = shape[0] * shape[1]
        rows[stream] = torch.randn(images, count, width, generator=random)
        mask[stream] = torch.ones(images, count, dtype=torch.bool)
        corners = torch.rand(images, count, 2, 2, generator=random).sort(dim=2).values * 100
        boxes[stream] = corners.flatten(2)
        shapes[stream] = (shape,) * images
    sizes = torch.full((images, 2), 100.0)
    return Features(rows=rows, mask=mask, boxes=boxes, sizes=sizes, grid_shape=shapes)


def build(recipe: recipes.Recipe, words: int, folder: Path) -> Captioner:
    """The recipe's captioner; where it wants word vectors, some words get them from a file."""
    torch.manual_seed(0)
    widths = {stream: width for stream, (width, _) in STREAMS.items()}
    model = entry(recipe.model_name()).build(recipe.model_config(), widths, words)
    if recipe.model_config().vectors is not None:
        glove = write_glove(folder / "glove.txt", [f"w{n}" for n in range(12)], 300)
        settings = dataclasses.replace(
            recipe.vocabulary, vectors=str(glove), without_vector=1 - 12 / words
        )
        recipe = dataclasses.replace(recipe, vocabulary=settings)
        find_vectors(recipe, vocabulary(words), ()).put_into(model)
    return model


def vocabulary(words: int) -> Vocabulary:
    return Vocabulary([*SPECIALS, *(f"w{n}" for n in range(words - 4))])


class OneBatch:
    """Stands in for the batches of a stage: the same single batch each epoch."""

    steps = 1

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield self.batch


@pytest.mark.parametrize("name", list(recipes.shipped()))
def test_a_recipe_trains_and_decodes_with_the_tiny_overlay(name: str, tmp_path: Path) -> None:
    recipe = recipes.load(name, overlay="tiny")
    xe = dataclasses.replace(recipe.xe, epochs=1)
    scst = dataclasses.replace(recipe.scst, epochs=1)
    recipe = dataclasses.replace(recipe, xe=xe, scst=scst)
    words = 30
    model = build(recipe, words, tmp_path)
    seen = features(model.needs, 2)
    tokens = torch.tensor([[BOS, 5, 6, 7, EOS], [BOS, 8, 9, EOS, PAD]])
    batch: Any = OneBatch(Batch(ids=("a", "b"), features=seen, tokens=tokens))

    def validate(model: Captioner) -> float:
        state = model.start(model.encode(seen))
        beam, length = recipe.decoding.beam, recipe.decoding.max_words
        found = beam_search(model.step, state, 2, beam, length, CPU)
        assert bool(found.scores.isfinite().all())
        return 0.5

    def reward(ids: Any, captions: Any) -> np.ndarray:
        return np.array([len(set(caption)) for caption in captions], dtype=np.float32)

    trainer = Trainer(
        model,
        recipe,
        tmp_path,
        xe=batch,
        scst=batch,
        vocabulary=vocabulary(words),
        validate=validate,
        reward=reward,
        device=CPU,
        facts={},
    )
    assert trainer.run().stage == "done"
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines if "loss" in line] == ["xe", "scst"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(recipes.shipped()))
def test_a_recipe_steps_and_decodes_at_full_size(name: str, tmp_path: Path) -> None:
    recipe = recipes.load(name)
    model = build(recipe, COCO_WORDS, tmp_path)
    seen = features(model.needs, 1)
    tokens = torch.tensor([[BOS, 5, 6, 7, EOS]])
    rate = 1e-4 if recipe.model_config().vectors is None else 1e-5  # given vectors are longer
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=recipe.xe.betas)
    losses = []
    for _ in range(2):
        valid = tokens[:, 1:] != PAD
        told = model.training_pass(model.encode(seen), tokens[:, :-1], valid)
        loss = cross_entropy(told.logits, tokens[:, 1:][valid], recipe.xe.smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[1] < losses[0]
    model.eval()
    with torch.no_grad():
        state = model.start(model.encode(seen))
        found = beam_search(model.step, state, 1, recipe.decoding.beam, 5, CPU)
    assert found.tokens.shape[:2] == (1, recipe.decoding.beam)


@pytest.mark.parametrize("name", [name for name in recipes.shipped() if "/" in name])
def test_a_recipe_of_a_paper_names_its_row_and_the_source_of_every_value(name: str) -> None:
    text = recipes.shipped()[name].read_text(encoding="utf-8")
    assert re.search(r'^source: ".*(table|text)', text, flags=re.MULTILINE)
    if "\nbase: " not in f"\n{text}":  # else its row says what it changes
        values = re.findall(r"^  (?!name:)\w+: .*", text, flags=re.MULTILINE)
        assert [line for line in values if not re.search(r"# (\[[TPCMR]\]|16 words)", line)] == []


def test_a_base_gives_what_a_recipe_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: transformer\nname: a\nmodel: {encoder_layers: 6}\n")
    path = tmp_path / "b.yaml"
    path.write_text(f"base: {tmp_path / 'a.yaml'}\nscst: {{epochs: 0}}\n")
    recipe, base = recipes.load(str(path)), recipes.load("transformer")
    changed = dataclasses.replace(base.scst, epochs=0)
    wanted = dataclasses.replace(
        base, name="a", model={**base.model, "encoder_layers": 6}, scst=changed
    )
    assert recipe == wanted


def test_bases_that_go_round_and_missing_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"base: {path}\n")
    with pytest.raises(WrongUsage, match="its bases go round"):
        recipes.load(str(path))
    path.write_text("base: transfomer\n")
    with pytest.raises(WrongUsage, match="'transformer'. There are [0-9]+, see pipeline"):
        recipes.load(str(path))


def test_an_override_goes_over_an_overlay_and_an_overlay_over_the_recipe() -> None:
    recipe = recipes.load("transformer", ["model.width=32"], overlay="tiny")
    assert recipe.model["width"] == 32 and recipe.model["heads"] == 4
    assert recipe.model["encoder_layers"] == 3 and recipe.xe.betas == (0.9, 0.98)
    assert recipe.name == "transformer+tiny"
    with pytest.raises(WrongUsage, match="no overlay or YAML file 'tinny'.*did you mean 'tiny'"):
        recipes.load("transformer", overlay="tinny")


def test_an_overlay_is_shown_resolved_and_refused_for_a_run_that_exists(tmp_path: Path) -> None:
    shown = CliRunner().invoke(command, ["--recipe", "transformer", "--overlay", "tiny", "--show"])
    assert shown.exit_code == 0 and "width: 64" in shown.output
    (tmp_path / "config.yaml").write_text("recipe: {}\n")
    refused = CliRunner().invoke(command, ["--out", str(tmp_path), "--overlay", "tiny"])
    assert refused.exit_code == 2 and "--overlay goes with --recipe only" in refused.output


def test_m2_learns_from_five_captions_of_an_image_in_its_own_words(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    cache, captions = write_toy(tmp_path)
    content = json.loads(captions.read_text())
    for image in content["images"]:
        image["sentences"] = [
            {"raw": f"A 4-way  stop{n}, here's one.", "tokens": ["x"]} for n in range(7)
        ]
    captions.write_text(json.dumps(content))
    recipe = recipes.load("m2/m2", ["xe.images=4"], overlay="tiny")
    texts = texts_of(read_captions(captions), recipe, FeatureCache(cache))
    first = next(iter(texts.train.values()))
    assert len(first) == 5 and first[1] == ("a", "4-way", " ", "stop1", "here", "'s", "one")
    scored = next(iter(texts.validation_references.values()))
    assert len(scored) == 5 and scored[1] == "a 4-way stop1 here 's one"
    known = Vocabulary.build(first, min_count=1)
    assert [known.words[n] for n in known.encode(first[1])[1:-1]] == list(first[1])
