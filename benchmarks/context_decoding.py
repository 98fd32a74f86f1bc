"""What a history costs: decoding by CAT, LightCAT and M2 beside the plain Transformer.

    python benchmarks/context_decoding.py --images 50 --length 11 --repeats 3

Full-size captioners with random weights decode images of random regions, greedily and with 5
beams, up to `--length` words (random weights almost never end a caption). `cached` is this
program's way: an image's keys are projected once and shared by its beams, and CAT's second pass
takes the regions' part from the first. `naive` is the way of the releases: every beam has its own
copy of the image, its keys are projected again for every word, and both passes of CAT are
attentions of their own; both must decode the same captions. The encoder's time is not counted.
Prints one JSON line; `ratio` is CPU time over the plain Transformer's, `state_mb` the most that
the state holds from one word to the next, keys and values of the image included.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from caption.captioner import Captioner
from caption.decode import beam_search, greedy
from caption.features import Features
from caption.models.context_assisted import ContextAssisted, History, Sources
from caption.registry import entry
from caption.transformer import DecoderState, Memory, Transformer

WORDS, REGIONS, WIDTH = 10201, 50, 2048  # of COCO and M2's features
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "light": ("cat", {"strategy": "light"}),
    "cat": ("cat", {}),
    "m2": ("meshed_memory", {}),
    "m2_cat": ("meshed_cat", {}),
}
CPU = torch.device("cpu")


class TwoAttentions(ContextAssisted):
    """CAT's passes as two attentions over joined keys, nothing shared between them."""

    def __init__(self, module: ContextAssisted) -> None:
        super().__init__(module.inner, module.strategy, module.own)

    def forward(self, x: Tensor, sources: Sources, past: Any) -> tuple[Tensor, History]:
        source, context = sources.second, x
        if self.strategy != "light":
            context, _ = self.inner(x, sources.first, None)  # (R, 1, D)
        kept = self.second.attention.project(context)
        kept = kept if past is None else past.contexts.append(kept)
        mask = torch.nn.functional.pad(source.mask, (0, kept.keys.shape[2]), value=True)
        attended = self.second.attention(x, source.rows.append(kept), mask[:, None])
        return self.second.add_norm(x, attended), History(kept, x.new_zeros(len(x), 1, 1))


@dataclass(frozen=True)
class Copied:
    """A state that holds its own copy of the image for every row."""

    memory: Memory
    inner: DecoderState

    def reorder(self, rows: Tensor) -> Copied:
        levels = tuple(level.index_select(0, rows) for level in self.memory.levels)
        memory = Memory(levels, self.memory.mask.index_select(0, rows))
        return Copied(memory, self.inner.reorder(rows))


def naive_step(model: Transformer) -> Callable[[Tensor, Copied], tuple[Tensor, Copied]]:
    """A step that projects every row's image again."""

    def step(tokens: Tensor, state: Copied) -> tuple[Tensor, Copied]:
        layers: Any = model.decoder
        sources = tuple(layer.prepare(state.memory) for layer in layers)
        log_probs, inner = model.step(tokens, replace(state.inner, sources=sources))
        return log_probs, Copied(state.memory, inner)

    return step


def features(images: int) -> Features:
    random = torch.Generator().manual_seed(0)
    return Features(
        rows={"regions": torch.randn(images, REGIONS, WIDTH, generator=random)},
        mask={"regions": torch.ones(images, REGIONS, dtype=torch.bool)},
        boxes={"regions": torch.zeros(images, REGIONS, 4)},
        sizes=torch.ones(images, 2),
        grid_shape={},
    )


def build(name: str) -> Captioner:
    registered, keys = MODELS[name]
    known = entry(registered)
    torch.manual_seed(1)
    model = known.build(known.config(stream="regions", **keys), {"regions": WIDTH}, WORDS)
    return model.eval()


def apart(model: Transformer) -> None:
    """Put two attentions in the place of each context-assisted one."""
    for layer in model.decoder:
        if isinstance(layer.cross_attention, ContextAssisted):
            layer.cross_attention = TwoAttentions(layer.cross_attention)


def held(state: Any) -> dict[int, int]:
    """The storages that a state keeps, and their bytes."""
    if isinstance(state, Tensor):
        storage = state.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    parts: Iterable[Any] = state if isinstance(state, tuple) else ()
    if is_dataclass(state):
        parts = vars(state).values()
    return {place: size for part in parts for place, size in held(part).items()}


def weighed(step: Any, sizes: list[int]) -> Any:
    """A step that also notes the bytes of the state behind it."""

    def weighing(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        log_probs, after = step(tokens, state)
        sizes.append(sum(held(after).values()))
        return log_probs, after

    return weighing


def decode(
    model: Transformer,
    memory: Memory,
    way: str,
    beams: int,
    length: int,
    sizes: list[int] | None = None,
) -> Tensor:
    """Tokens (B, K, T); the bytes of the states go into `sizes`."""
    images = len(memory.mask)
    state: Any = model.start(memory)
    step: Any = model.step
    if way == "naive":
        state, step = Copied(memory, state), naive_step(model)
    step = step if sizes is None else weighed(step, sizes)
    if beams == 1:
        return greedy(step, state, images, length, CPU).tokens
    return beam_search(step, state, images, beams, length, CPU).tokens


@torch.no_grad()
def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per model, way and beam width; the fastest of the repeats."""
    images = features(args.images)
    models: dict[str, Any] = {name: build(name) for name in MODELS}
    memories = {name: model.encode(images) for name, model in models.items()}
    found: dict[str, Any] = {}
    tokens: dict[tuple[str, int], Tensor] = {}
    for way in ("cached", "naive"):
        if way == "naive":
            for model in models.values():
                apart(model)
        for beams in (1, 5) if way in args.ways else ():
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in MODELS}
            sizes: dict[str, list[int]] = {name: [] for name in MODELS}
            for repeat in range(args.repeats + 1):  # the first one warms up
                for name, model in models.items():  # by turns, so that all have the same company
                    wall, cpu = time.perf_counter(), time.process_time()
                    seen = None if repeat else sizes[name]
                    words = decode(model, memories[name], way, beams, args.length, seen)
                    if repeat:
                        times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
                    if not torch.equal(tokens.setdefault((name, beams), words), words):
                        raise SystemExit(f"{name}: the {way} way decodes other captions")
            best = {n: (min(w for w, _ in t), min(c for _, c in t)) for n, t in times.items()}
            plain = best["transformer"][1]
            found[f"{way} {'beam 5' if beams == 5 else 'greedy'}"] = {
                name: {
                    "wall": round(w, 3),
                    "cpu": round(c, 3),
                    "ratio": round(c / plain, 3),
                    "state_mb": round(max(sizes[name]) / 1e6, 1),
                }
                for name, (w, c) in best.items()
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--length", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=["cached", "naive"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = {**vars(args), "wait_policy": os.environ.get("OMP_WAIT_POLICY", "unset")}
    print(json.dumps({"benchmark": "context_decoding", **settings, **measure(args)}))


if __name__ == "__main__":
    main()
