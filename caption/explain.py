"""Why a captioner said a word: attention maps, gates, memory and history weights, attributions.

Integrated gradients: Sundararajan, Taly, Yan, "Axiomatic Attribution for Deep Networks" (2017), as
the Meshed-Memory paper's figure 4 has them: per word over the image's rows, from zeros.

Legend: T words, N rows of an image, F width of the features, L layers, E encoder levels that a
decoder layer reads, H heads, S images on a path, I intervals of it, P points of each. Everything
here is about one image and one caption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from caption.captioner import Captioner
from caption.errors import CaptionError
from caption.features import Features
from caption.losses import word_log_probs
from caption.transformer import Transformer

POINTS = 5  # of the rule on one interval of a path
CHUNK = 5  # intervals that are computed at once
TOLERANCE = 0.02  # of completeness, relative to what the image adds to a word's log-probability


@dataclass(frozen=True, kw_only=True)
class Attributions:
    """What each row of the image adds to the log-probability of each word, in nats."""

    scores: dict[str, Tensor]  # stream -> (T, N), 0 where padded
    gained: Tensor  # (T,) log p(word | image) - log p(word | rows of zeros)
    steps: int  # gradients taken on the path

    @property
    def error(self) -> Tensor:
        """(T,) how far the scores are from adding up to what was gained (completeness)."""
        total = torch.stack([score.sum(dim=-1) for score in self.scores.values()]).sum(dim=0)
        return (total - self.gained).abs()

    @property
    def complete(self) -> Tensor:
        """(T,) whether the scores add up, within `TOLERANCE` of what was gained or of 1 nat."""
        return self.error <= TOLERANCE * self.gained.abs().clamp(min=1.0)


@dataclass(frozen=True, kw_only=True)
class Looks:
    """Where a Transformer looked at each word."""

    log_probs: Tensor  # (T,) of the words
    attention: Tensor  # (L, E, H, T, N) on the rows; without history it sums to 1
    history: Tensor | None  # (L, E, H, T, T) on earlier contexts, of context-assisted captioners
    gates: Tensor | None  # (L, E, T) mean over the width, of meshed captioners
    memory: Tensor | None  # (L', H) encoder's mean weight on its memory slots

    def rows(self) -> Tensor:
        """(T, N) attention on the rows, mean over layers, levels and heads."""
        return self.attention.mean(dim=(0, 1, 2))

    def history_weight(self) -> Tensor | None:
        """(L, T) total weight on the history, mean over levels and heads."""
        return None if self.history is None else self.history.sum(dim=-1).mean(dim=(1, 2))


def integrated_gradients(
    model: Captioner,
    features: Features,
    tokens: Tensor,
    steps: int = 50,
    most: int = 400,
    on_done: Callable[[int], None] = lambda count: None,
) -> Attributions:
    """Attributions of the words tokens[1:], where tokens (T + 1,) begin with `BOS`.

    F_t(X) = log p(w_t | w_<t, X); score = sum over the width of (X - 0) * mean gradient of F_t on
    the straight path from zeros to X. Boxes and the mask of real rows are the image's all along
    the path. The path begins as `steps` points; its worst intervals, where the gradients do not add
    up to what F gains, are halved as long as `most` points allow. `features` hold one image.
    `on_done` is told how many more gradients are ready.
    """
    ends = _log_probs(model, scaled(features, torch.tensor([0.0, 1.0])), tokens).detach()  # (2, T)
    gained = ends[1] - ends[0]  # (T,)
    allowed = TOLERANCE * gained.abs().clamp(min=1.0)  # (T,)
    edges = torch.linspace(0, 1, max(1, steps // POINTS) + 1)
    path = torch.stack([edges[:-1], edges[1:]], dim=1)  # (I, 2)
    scores, error = _over(model, features, tokens, path, on_done)  # (I, T, N) per stream, (I, T)
    used = POINTS * len(path)
    while bool((error.sum(dim=0) > allowed).any()) and used + 2 * POINTS <= most:
        count = min(CHUNK, len(path), (most - used) // (2 * POINTS))
        worst = (error / allowed).amax(dim=1).topk(count).indices.cpu()  # (I',)
        rest = torch.ones(len(path), dtype=torch.bool)
        rest[worst] = False
        low, high = path[worst].unbind(dim=1)
        middle = (low + high) / 2
        halves = torch.stack([low, middle, middle, high], dim=1).view(-1, 2)  # (2 I', 2)
        finer, finer_error = _over(model, features, tokens, halves, on_done)
        used += POINTS * len(halves)
        path = torch.cat([path[rest], halves])
        scores = {name: torch.cat([scores[name][rest], finer[name]]) for name in model.needs}
        error = torch.cat([error[rest], finer_error])
    total = {name: score.sum(dim=0) for name, score in scores.items()}  # (T, N)
    return Attributions(scores=total, gained=gained, steps=used)


def _over(
    model: Captioner,
    features: Features,
    tokens: Tensor,
    intervals: Tensor,
    on_done: Callable[[int], None],
) -> tuple[dict[str, Tensor], Tensor]:
    """Scores (I, T, N) per stream over intervals (I, 2) of the path, by a Gauss-Legendre rule.

    Also how far (I, T) they are from adding up to what the words gain over each interval.
    """
    found: list[dict[str, Tensor]] = []
    errors = []
    for some in intervals.split(CHUNK):
        scores = _gradients(model, features, tokens, some)
        with torch.no_grad():
            edges = scaled(features, some.flatten())
            low, high = _log_probs(model, edges, tokens).unflatten(0, (-1, 2)).unbind(dim=1)
        added = torch.stack([score.sum(dim=-1) for score in scores.values()]).sum(dim=0)  # (I, T)
        errors.append((added - (high - low)).abs())
        found.append(scores)
        on_done(POINTS * len(some))
    streams = {name: torch.cat([scores[name] for scores in found]) for name in model.needs}
    return streams, torch.cat(errors)


def _gradients(
    model: Captioner, features: Features, tokens: Tensor, intervals: Tensor
) -> dict[str, Tensor]:
    """(I, T, N) per stream: X times the integral of the gradient over each interval (I, 2)."""
    points, shares = np.polynomial.legendre.leggauss(POINTS)  # on -1..1
    nodes = torch.tensor(points + 1, dtype=torch.float32) / 2  # (P,) in 0..1
    low, length = intervals[:, :1], intervals[:, 1:] - intervals[:, :1]  # (I, 1)
    weights = torch.tensor(shares / 2, dtype=torch.float32) * length  # (I, P)
    batch = scaled(features, (low + nodes * length).flatten())  # S = I P images
    inputs = [batch.rows[stream].requires_grad_() for stream in model.needs]
    values = _log_probs(model, batch, tokens).sum(dim=0)  # (T,): images do not meet
    found: dict[str, list[Tensor]] = {stream: [] for stream in model.needs}
    for t in range(len(values)):
        gradients = torch.autograd.grad(values[t], inputs, retain_graph=t < len(values) - 1)
        for stream, gradient in zip(model.needs, gradients, strict=True):  # (S, N, F)
            inner = (features.rows[stream] * gradient).sum(dim=-1)  # (S, N)
            inner = inner.unflatten(0, (len(intervals), POINTS))  # (I, P, N)
            found[stream].append((weights.to(inner)[..., None] * inner).sum(dim=1))  # (I, N)
    return {stream: torch.stack(words, dim=1) for stream, words in found.items()}


def scaled(features: Features, alphas: Tensor) -> Features:
    """S copies of one image's features, copy s with its rows times alphas[s]; masks as they are."""
    copies = len(alphas)

    def repeated(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t.expand(copies, *t.shape[1:]) for name, t in tensors.items()}

    return replace(
        features,
        rows={
            name: alphas.to(rows)[:, None, None] * rows for name, rows in features.rows.items()
        },  # (S, N, F)
        mask=repeated(features.mask),
        boxes=repeated(features.boxes),
        sizes=features.sizes.expand(copies, -1),
        grid_shape={name: shapes * copies for name, shapes in features.grid_shape.items()},
    )


def _log_probs(model: Captioner, features: Features, tokens: Tensor) -> Tensor:
    """(S, T) log-probability of each word in each of S images."""
    rows = tokens.repeat(len(features.sizes), 1)  # (S, T + 1)
    logits = model(model.encode(features), rows[:, :-1])  # (S, T, V)
    return word_log_probs(logits.float(), rows[:, 1:])


class Read(NamedTuple):
    """One call of a watched module: what went in, and what came out first."""

    inputs: tuple[Any, ...]
    output: Tensor


@contextmanager
def watched(modules: list[nn.Module]) -> Iterator[list[list[Read]]]:
    """The calls of each module while the context is open."""
    calls: list[list[Read]] = [[] for _ in modules]

    def keep(place: int) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            calls[place].append(Read(inputs, first))

        return hook

    handles = [m.register_forward_hook(keep(place)) for place, m in enumerate(modules)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def look(model: Captioner, features: Features, tokens: Tensor) -> Looks:
    """Where the model looked at each of the words tokens[1:]; tokens (T + 1,) begin with `BOS`.

    Raises CaptionError for a captioner that is no Transformer.
    """
    if not isinstance(model, Transformer):
        raise CaptionError(f"{type(model).__name__} has no attention maps to show")
    cross: list[Any] = [layer.cross_attention for layer in model.decoder]
    own: list[Any] = [layer.self_attention for layer in model.encoder]
    with watched([*cross, *own]) as calls:
        log_probs = _log_probs(model, features, tokens)[0]  # (T,)
    reads, looks = calls[: len(cross)], calls[len(cross) :]
    rows, history, gates = [], [], []
    for module, layer, levels in zip(cross, model.decoder, reads, strict=True):
        weights = [module.weights(*read.inputs) for read in levels]
        rows.append(torch.stack([on_rows[0] for on_rows, _ in weights]))  # (E, H, T, N)
        history += [torch.stack([h[0] for _, h in weights])] if weights[0][1] is not None else []
        wiring: Any = layer.wiring
        if hasattr(wiring, "alphas"):
            words = levels[0].inputs[0]  # (1, T, D)
            alphas = wiring.alphas(words, [read.output for read in levels])  # (E, 1, T, D)
            gates.append(alphas[:, 0].mean(dim=-1))  # (E, T)
    masses = [_memory_mass(m, read[0].inputs) for m, read in zip(own, looks, strict=True)]
    slots = [mass for mass in masses if mass is not None]
    return Looks(
        log_probs=log_probs,
        attention=torch.stack(rows),
        history=torch.stack(history) if history else None,
        gates=torch.stack(gates) if gates else None,
        memory=torch.stack(slots) if slots else None,
    )


def _memory_mass(module: Any, inputs: tuple[Any, ...]) -> Tensor | None:
    """(H,) mean weight of the image's real rows on the memory slots; None without slots."""
    if not getattr(module, "slots", 0):
        return None
    x, image = inputs
    weights = module.weights(x, image)[0]  # (H, N, N + m)
    return weights[:, image.mask[0], x.shape[1] :].sum(dim=-1).mean(dim=-1)
