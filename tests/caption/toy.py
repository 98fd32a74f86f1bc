"""A small world whose captions can be learned: one feature direction per word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from caption.features import Features
from extract.cache import ImageFeatures, Stream
from extract.writer import CacheWriter

NOUNS = ("dog", "cat", "bird", "horse")
COLOURS = ("red", "blue", "green")
WIDTH = 16  # of the features
META = {"preset": "toy", "settings": {"width": WIDTH}, "weights": {"file": "none"}}


def write_toy(
    folder: Path, images: int = 24, seed: int = 0, view: str | None = None
) -> tuple[Path, Path]:
    """A cache of all kinds of streams and a Karpathy file; returns (cache, captions)."""
    random = np.random.default_rng(seed)
    directions = random.normal(size=(len(NOUNS) + len(COLOURS), WIDTH))
    records, entries = [], []
    for number in range(images):
        noun, colour = number % len(NOUNS), number % len(COLOURS)
        rows = directions[[noun, len(NOUNS) + colour]] + 0.1 * random.normal(size=(2, WIDTH))
        boxes = np.array([[0, 0, 40, 30], [40, 0, 80, 60]], dtype=np.float32)
        records.append(
            ImageFeatures(
                image_id=f"toy{number}",
                width=80,
                height=60,
                streams={
                    "grids": rows,
                    "regions": np.repeat(rows, 1 + number % 3, axis=0),
                    "pyramid_high": rows,
                    "pyramid_low": np.concatenate([rows, rows]),
                },
                boxes={
                    "grids": boxes,
                    "regions": np.repeat(boxes, 1 + number % 3, axis=0),
                    "pyramid_high": boxes,
                    "pyramid_low": np.concatenate([boxes, boxes]),
                },
                grid_shape={"grids": (1, 2), "pyramid_high": (1, 2), "pyramid_low": (2, 2)},
            )
        )
        words = [COLOURS[colour], NOUNS[noun]]
        texts = [["a", *words], ["there", "is", "a", *words], ["one", *words, "here"]]
        split = ("train", "train", "train", "val", "test")[number % 5]
        sentences = [{"tokens": text, "raw": " ".join(text) + " ."} for text in texts]
        entries.append({"filename": f"toy{number}.jpg", "split": split, "sentences": sentences})
    cache, captions = folder / "features", folder / "captions.json"
    names = ("grids", "regions", "pyramid_high", "pyramid_low")
    streams = {name: Stream(WIDTH) for name in names}
    settings = {**META["settings"], **({} if view is None else {"view": view})}
    with CacheWriter(cache, {**META, "settings": settings}, streams) as writer:
        writer.commit(records)
    captions.write_text(json.dumps({"dataset": "toy", "images": entries}), encoding="utf-8")
    return cache, captions


def write_glove(path: Path, words: Sequence[str], width: int, seed: int = 0) -> Path:
    """A text file of word vectors as GloVe's."""
    random = np.random.default_rng(seed)
    rows = zip(words, random.normal(scale=0.3, size=(len(words), width)), strict=True)
    lines = [" ".join([word, *(f"{value:.4f}" for value in row)]) for word, row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def random_features(images: int = 3, rows: int = 5, width: int = WIDTH, seed: int = 0) -> Features:
    """A batch with fewer real rows in the later images, in every stream there may be."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.tensor([max(1, rows - 2 * i) for i in range(images)])
    mask = torch.arange(rows) < counts[:, None]  # (B, N)
    corners = torch.rand(images, rows, 4, generator=random).sort(dim=-1).values * 100
    boxes = corners[..., [0, 1, 2, 3]]
    values = torch.randn(images, rows, width, generator=random) * mask[..., None]
    fine = torch.randn(images, 2 * rows, width, generator=random)  # two rows of cells
    fine_mask = torch.arange(2 * rows) < 2 * counts[:, None]  # (B, 2 N)
    one_row = tuple((1, count) for count in counts.tolist())
    return Features(
        rows={
            "grids": values,
            "regions": values,
            "pyramid_high": values,
            "pyramid_low": fine * fine_mask[..., None],
        },
        mask={"grids": mask, "regions": mask, "pyramid_high": mask, "pyramid_low": fine_mask},
        boxes={
            "grids": boxes,
            "regions": boxes,
            "pyramid_high": boxes,
            "pyramid_low": torch.cat([boxes, boxes], dim=1),
        },
        sizes=torch.full((images, 2), 100.0),
        grid_shape={
            "grids": one_row,
            "pyramid_high": one_row,
            "pyramid_low": tuple((2, count) for count in counts.tolist()),
        },
    )


def no_gradients(model: nn.Module) -> list[str]:
    """Names of the parameters that the last backward pass did not reach."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (parameter.grad is None or not torch.any(parameter.grad != 0))
    ]
