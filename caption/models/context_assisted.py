"""CAT and LightCAT: cross-attention that also reads its own earlier contexts.

Lian, Wang, Li, Yao and Hu, "Context-assisted Transformer for Image Captioning", Acta Automatica
Sinica 49(9), 2023. The text at hand has lost its displayed equations; docs/models.md says which
sentences stand behind each line here, and which settings switch to another reading.

Two blocks of keys, the image's rows and a caption's history, share one softmax. It is computed
block by block: with Z_v and Z_h the sums of exp(logit) over each,

    softmax over both = [ (1 - a) softmax over rows ; a softmax over history ],
    a = Z_h / (Z_v + Z_h) = sigmoid(log Z_h - log Z_v),

so the history's total weight a falls out, the image's keys are never repeated per caption, and
with shared parameters the second pass takes the rows' part from the first.

Legend: B images, R captions or beams (grouped by image), T words, t history slots, N rows of an
image, D width, H heads, d width of a head, L decoder layers, V vocabulary, W words that are
predicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from caption.blocks import KeysValues, by_image, by_row
from caption.captioner import TrainingPass
from caption.errors import CaptionError
from caption.models.meshed_memory import KeptLevels, MeshedMemoryConfig
from caption.transformer import (
    Kept,
    Memory,
    Slots,
    Source,
    Transformer,
    TransformerConfig,
)

STRATEGIES = ("tca", "ohc", "ihc", "chc", "light")
NORMS = ("rms", "mse", "abs", "l2")
EPSILON = 1e-8  # keeps the root's gradient finite (the paper's value)
NEVER = -1e9  # logit of a slot that may not be seen: weight 0, gradient 0, never NaN


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """What CAT adds to the captioner it is built on."""

    strategy: str = "chc"  # history: `tca` none, `ohc` only, `ihc` before now, `chc` all, `light`
    shared: bool = True  # the second pass has the first one's parameters
    gamma: float = 0.5  # weight of the adaptive weight constraint; 0 leaves it out
    beta: float = 0.5  # what each head's history weight is drawn to, or where that begins
    learn_beta: bool = True  # one beta per layer and head is learned
    bounded_beta: bool = False  # keep a learned beta in 0..1 by a sigmoid
    constraint_norm: str = "rms"  # distance to beta: `rms`, `mse`, `abs`, or `l2` per caption
    constraint_mean: bool = False  # mean over layers and heads, instead of the sum

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise CaptionError(
                f"model.strategy is {self.strategy!r}, wanted one of {', '.join(STRATEGIES)}"
            )
        if self.constraint_norm not in NORMS:
            raise CaptionError(
                f"model.constraint_norm is {self.constraint_norm!r}, wanted one of"
                f" {', '.join(NORMS)}"
            )
        if self.strategy in ("tca", "light") and not self.shared:
            raise CaptionError(
                f"model.shared is false, but strategy {self.strategy!r} has no second pass"
            )
        if self.strategy in ("tca", "ohc") and self.gamma:
            raise CaptionError(
                f"model.gamma is {self.gamma}, but strategy {self.strategy!r} has no history weight"
                " to constrain: -o model.gamma=0"
            )
        if self.gamma < 0 or not 0 < self.beta < 1:
            raise CaptionError(
                f"model.gamma is {self.gamma} and model.beta {self.beta}, wanted gamma >= 0 and"
                " 0 < beta < 1"
            )


@dataclass(frozen=True, kw_only=True)
class CATConfig(ContextConfig, TransformerConfig):
    """CAT on the plain Transformer."""

    def __post_init__(self) -> None:
        ContextConfig.__post_init__(self)
        TransformerConfig.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class MeshedCATConfig(ContextConfig, MeshedMemoryConfig):
    """CAT on the Meshed-Memory Transformer: a history for each encoder level that is read."""

    def __post_init__(self) -> None:
        ContextConfig.__post_init__(self)
        MeshedMemoryConfig.__post_init__(self)
        if self.norm != "levels" and self.strategy != "tca":
            raise CaptionError(
                f"model.norm is {self.norm!r}, but a context that is remembered is normed: wanted"
                " 'levels'"
            )


@dataclass(frozen=True)
class History:
    """The historical context memory of one layer, and the weight it was given."""

    contexts: KeysValues  # of all words so far (R, H, t, d)
    weight: Tensor  # a (R, H, T) of the words of the last call

    def select(self, rows: Tensor) -> History:
        """The entries at `rows` (R',)."""
        return History(self.contexts.select(rows), self.weight.index_select(0, rows))


class Sources(NamedTuple):
    """One encoder level as both passes read it; the same twice where parameters are shared."""

    first: Source
    second: Source


class Block(NamedTuple):
    """One block of keys under its own softmax."""

    weights: Tensor  # (.., Q, N)
    log_sum: Tensor  # (.., Q) log of the sum of exp(logit)

    @staticmethod
    def of(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Block:
        """(.., Q, d) against (.., N, d); `mask` (.., 1 or Q, N) is True where allowed."""
        logits = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])  # (.., Q, N)
        logits = logits.float()  # in bfloat16 the log of a sum has too few digits
        if mask is not None:
            logits = logits.masked_fill(~mask, NEVER)
        log_sum = logits.logsumexp(dim=-1)  # (.., Q)
        return Block((logits - log_sum[..., None]).exp(), log_sum)


class Reading(NamedTuple):
    """What a cross-attention saw of the image and of its history, before they are mixed."""

    image: Block  # weights (B, H, R/B T, N)
    rows: Tensor  # (R, H, T, d) the image's values under those weights
    history: Block  # weights (R, H, T, t)
    memory: History


def _over_image(queries: Tensor, source: Source) -> tuple[Block, Tensor]:
    """Queries (R, H, T, d) over the rows of their images, and the values mixed (R, H, T, d)."""
    grouped = by_image(queries, source.mask.shape[0])  # (B, H, R/B T, d)
    block = Block.of(grouped, source.rows.keys, source.mask[:, None, None])
    return block, by_row(block.weights @ source.rows.values.float(), queries.shape[2])


class ContextAssisted(nn.Module):
    """Context-assisted cross-attention around a cross-attention.

    `inner` has `attention`, `add_norm` and `prepare` as the plain one; `second`, of the same
    kind, holds the second pass's parameters where it does not share the first one's.
    """

    def __init__(self, inner: Any, strategy: str, second: Any = None) -> None:
        super().__init__()
        self.inner = inner
        self.own = second
        self.strategy = strategy

    @property
    def second(self) -> Any:
        """The cross-attention of the second pass."""
        return self.inner if self.own is None else self.own

    def prepare(self, level: Tensor, mask: Tensor) -> Sources:
        """Keys and values of an encoder level (B, N, D), its real rows (B, N)."""
        first = self.inner.prepare(level, mask)
        reused = self.own is None or self.strategy == "ohc"  # OHC's second pass sees no rows
        return Sources(first, first if reused else self.own.prepare(level, mask))

    def forward(self, x: Tensor, sources: Sources, past: Kept | None) -> tuple[Tensor, History]:
        """Words (R, T, D) to their final contexts (R, T, D), and the history with them."""
        read = self.read(x, sources, past)
        weight = read.memory.weight[..., None]  # (R, H, T, 1)
        told = read.history.weights @ read.memory.contexts.values.float()  # (R, H, T, d)
        mixed = told if self.strategy == "ohc" else (1 - weight) * read.rows + weight * told
        context: Tensor = self.second.add_norm(x, self.second.attention.join(mixed, x))
        return context, read.memory  # (R, T, D)

    def weights(self, x: Tensor, sources: Sources, past: Kept | None) -> tuple[Tensor, Tensor]:
        """The attention weights on the image's rows (R, H, T, N) and the history (R, H, T, t)."""
        read = self.read(x, sources, past)
        weight = read.memory.weight[..., None]  # (R, H, T, 1)
        on_rows = by_row(read.image.weights, x.shape[1])  # (R, H, T, N)
        return (1 - weight) * on_rows, weight * read.history.weights

    def read(self, x: Tensor, sources: Sources, past: Kept | None) -> Reading:
        """Both blocks of the final pass over words (R, T, D)."""
        first, second = self.inner.attention, self.second.attention
        queries = first.queries(x, None)  # (R, H, T, d)
        image, rows = _over_image(queries, sources.first)
        contexts = x if self.strategy == "light" else self._temporary(x, rows)  # (R, T, D)
        if self.own is not None:
            queries = second.queries(x, None)  # (R, H, T, d)
            if self.strategy != "ohc":
                image, rows = _over_image(queries, sources.second)
        kept = second.project(contexts)  # (R, H, T, d)
        if isinstance(past, History):
            kept = past.contexts.append(kept)  # (R, H, t, d)
        history = Block.of(queries, kept.keys, self._mask(x.shape[1], kept.keys))
        if self.strategy == "ohc":
            weight = torch.ones_like(history.log_sum)  # (R, H, T)
        else:
            seen = by_row(image.log_sum, x.shape[1])  # (R, H, T)
            weight = torch.sigmoid(history.log_sum - seen)  # (R, H, T)
        return Reading(image, rows, history, History(kept, weight))

    def temporary(self, x: Tensor, sources: Sources) -> Tensor:
        """The contexts (R, T, D) of the first pass: LN(q + MHA(q, K, V))."""
        attention = self.inner.attention
        _, rows = _over_image(attention.queries(x, None), sources.first)
        return self._temporary(x, rows)

    def _temporary(self, x: Tensor, rows: Tensor) -> Tensor:
        context: Tensor = self.inner.add_norm.once(x, self.inner.attention.join(rows, x))
        return context  # (R, T, D)

    def _mask(self, words: int, keys: Tensor) -> Tensor | None:
        """(T, t), True on the slots a word may see: its own too, but for IHC."""
        last = keys.shape[2] - words - (self.strategy == "ihc")  # slot the first word sees last
        if words == 1 and self.strategy != "ihc":
            return None
        return torch.ones(words, keys.shape[2], dtype=torch.bool, device=keys.device).tril(last)


def context_slots(config: Any, base: Slots) -> Slots:
    """The slots of a captioner with its cross-attention context-assisted as `config` says."""
    if config.strategy == "tca":
        return base

    def cross_attention(settings: Any) -> ContextAssisted:
        inner = base.cross_attention(settings)
        second = None if config.shared else base.cross_attention(settings)
        return ContextAssisted(inner, config.strategy, second)

    return replace(base, cross_attention=cross_attention)


class WeightConstraint(nn.Module):
    """Adaptive weight constraint: the distance of history weights to beta, per layer and head."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm, self.mean, self.bounded = (
            config.constraint_norm,
            config.constraint_mean,
            config.learn_beta and config.bounded_beta,
        )
        begin = torch.full((config.decoder_layers, config.heads), config.beta)  # (L, H)
        self.raw: Tensor
        if config.learn_beta:
            self.raw = nn.Parameter(begin.logit() if self.bounded else begin)
        else:
            self.register_buffer("raw", begin)

    @property
    def beta(self) -> Tensor:
        """(L, H)."""
        return self.raw.sigmoid() if self.bounded else self.raw

    def per_head(self, weight: Tensor, valid: Tensor) -> Tensor:
        """(L, H) distances of history weights (L, R, H, T) where `valid` (R, T)."""
        return distance(weight, self.beta, valid, self.norm)

    def forward(self, weight: Tensor, valid: Tensor) -> Tensor:
        """The constraint, a scalar."""
        each = self.per_head(weight, valid)  # (L, H)
        return each.mean() if self.mean else each.sum()


def distance(weight: Tensor, beta: Tensor, valid: Tensor, norm: str) -> Tensor:
    """Distance (L, H) of history weights (L, R, H, T) to beta (L, H) over the `valid` (R, T).

    `rms`: root of the mean square over all valid words; `mse`: the mean square; `abs`: the mean
    absolute difference; `l2`: the root of a caption's sum of squares, mean over captions.
    """
    here = valid[None, :, None].to(weight.dtype)  # (1, R, 1, T)
    off = (weight - beta[:, None, :, None]) * here  # (L, R, H, T)
    if norm == "l2":
        return (off.square().sum(dim=-1) + EPSILON).sqrt().mean(dim=1)
    total = off.abs() if norm == "abs" else off.square()  # (L, R, H, T)
    mean = total.sum(dim=(1, 3)) / here.sum().clamp(min=1)  # (L, H)
    return (mean + EPSILON).sqrt() if norm == "rms" else mean


def histories(kept: Kept | None) -> list[History]:
    """The histories in what a layer's cross-attention keeps: one per encoder level it reads."""
    levels = kept.levels if isinstance(kept, KeptLevels) else (kept,)
    return [level for level in levels if isinstance(level, History)]


class ContextAssistedTransformer(Transformer):
    """A Transformer of context-assisted slots, with the constraint on their history weights."""

    def __init__(
        self, config: Any, *, in_width: int, vocabulary: int, slots: Slots | None = None
    ) -> None:
        """`slots` are those of the captioner that CAT is built on."""
        slots = context_slots(config, slots or Slots())
        super().__init__(config, in_width=in_width, vocabulary=vocabulary, slots=slots)
        self.strategy, self.gamma = config.strategy, config.gamma
        self.constraint = WeightConstraint(config) if config.gamma else None

    def history_weight(self, memory: Memory, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (R, T, D), and the total weight on the history per layer (L, R, H, T).

        Where a layer reads several encoder levels its weight is the mean over them.
        """
        hidden, state = self.decode(tokens, self.start(memory))  # (R, T, D)
        weights = []
        for layer in state.layers:
            each = [history.weight for history in histories(layer.context if layer else None)]
            weights.append(torch.stack(each).mean(dim=0))  # (R, H, T)
        return hidden, torch.stack(weights)

    def training_pass(self, memory: Memory, tokens: Tensor, valid: Tensor) -> TrainingPass:
        """L = L_XE + gamma AWC; the history weights and betas are logged."""
        if self.strategy in ("tca", "ohc"):
            return super().training_pass(memory, tokens, valid)
        hidden, weight = self.history_weight(memory, tokens)  # (R, T, D), (L, R, H, T)
        logits = self.output(hidden[valid])  # (W, V)
        if self.strategy == "ihc":  # there is no history at the first word
            valid = valid.clone()
            valid[:, 0] = False
        facts = _facts(weight.detach(), valid)
        if self.constraint is None:
            return TrainingPass(logits, facts=facts)
        awc = self.constraint(weight, valid)
        betas = self.constraint.beta.detach().mean(dim=1).tolist()
        facts |= {"awc": float(awc.detach())}
        facts |= {f"beta_{layer}": beta for layer, beta in enumerate(betas, start=1)}
        return TrainingPass(logits, self.gamma * awc, facts)


def _facts(weight: Tensor, valid: Tensor) -> dict[str, float]:
    """Mean history weight per layer, and the top layer's at the first word."""
    count = valid.sum().clamp(min=1)
    means = (weight.mean(dim=2) * valid).sum(dim=(1, 2)) / count  # (L,)
    facts = {f"history_{layer}": mean for layer, mean in enumerate(means.tolist(), start=1)}
    return {**facts, "history_first": float(weight[-1, :, :, 0].mean())}


VARIANTS: dict[str, dict[str, Any]] = {
    "light": {"strategy": "light"},
    "no_constraint": {"gamma": 0.0},
    "fixed_beta": {"learn_beta": False, "beta": 0.3},
    "bounded_beta": {"bounded_beta": True},
    "own_second_pass": {"shared": False, "gamma": 0.0},
    "tca": {"strategy": "tca", "gamma": 0.0},
    "ohc": {"strategy": "ohc", "gamma": 0.0},
    "ohc_own_second_pass": {"strategy": "ohc", "shared": False, "gamma": 0.0},
    "ihc": {"strategy": "ihc"},
    "ihc_own_second_pass": {"strategy": "ihc", "shared": False, "gamma": 0.0},
    "double_norm": {"double_norm": True},
}
