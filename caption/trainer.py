"""Training: cross-entropy, then self-critical, with validation, checkpoints and resume.

The trainer is given everything it works on: model, batches, a `validate` function (it decodes as
evaluation does, by beam search, and returns CIDEr-D) and a `Reward`. It writes only into the run
folder: `last/`, `best/` and `metrics.jsonl`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from caption import checkpoint
from caption.batches import Batch, Batches, generator
from caption.captioner import Captioner
from caption.config import TrainingConfig
from caption.decode import Decoded, beam_search, greedy, sample
from caption.errors import CaptionError
from caption.losses import cross_entropy, mean_of_others, self_critical, word_log_probs
from caption.schedules import scheduled
from caption.vocabulary import BOS, EOS, PAD, Vocabulary

log = logging.getLogger(__name__)

SPEECHLESS = 0.01  # validation CIDEr-D (x1) below which captions are empty or fit by chance
Validate = Callable[[Captioner], float]  # CIDEr-D of the validation split, x1


class Reward(Protocol):
    """A score per caption, given as words; `ids[k]` is the image of `captions[k]`."""

    def __call__(self, ids: Sequence[str], captions: Sequence[Sequence[str]]) -> np.ndarray: ...


@dataclass
class Position:
    """Where training stands; all of it is kept in `last/`."""

    stage: str = "xe"  # `xe`, `scst` or `done`
    epoch: int = 0  # of the stage
    step: int = 0  # of the epoch
    updates: int = 0  # of the stage
    losses: float = 0.0  # of the epoch's updates, summed
    best: float = -math.inf  # validation CIDEr-D of `best/`
    bad_epochs: int = 0  # epochs without a better one
    seconds: dict[str, float] = field(default_factory=dict)  # spent per stage
    metrics_bytes: int = 0  # length of metrics.jsonl that belongs to this state


class Trainer:
    """Trains one captioner in one run folder; `run()` starts or resumes."""

    def __init__(
        self,
        model: Captioner,
        config: TrainingConfig,
        folder: Path,
        *,
        xe: Batches,
        scst: Batches | None,
        vocabulary: Vocabulary,
        validate: Validate,
        reward: Reward | None,
        device: torch.device,
        facts: dict[str, Any],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """`facts` go into each checkpoint's meta.json as they are.

        `interrupted` is asked after every update: True saves the state and ends `run`.
        """
        self.model, self.config, self.folder = model.to(device), config, folder
        self.batches = {"xe": xe, "scst": scst}
        self.vocabulary, self.validate, self.reward = vocabulary, validate, reward
        self.device, self.facts = device, facts
        self.interrupted = interrupted
        self.metrics = folder / "metrics.jsonl"
        self.at = Position()
        self.optimizer = self._optimizer("xe")
        self.average = self._average()
        self.saved = time.monotonic()

    # stages

    def run(self) -> Position:
        """Train to the end, from `last/` where there is one; returns the final position.

        Raises KeyboardInterrupt, once the state is saved, when interrupted between two updates
        or while `validate` works.
        """
        if checkpoint.find(self.folder / "last") is not None:
            self._resume()
        else:
            log.info("%s: a new run", self.folder)
            torch.manual_seed(self.config.seed)
            with checkpoint.writing(self.metrics):
                self.metrics.write_bytes(b"")
        self.saved = time.monotonic()
        if self.at.stage == "xe":
            self._stage("xe", self._xe_loss, self.config.xe.epochs, self.config.xe.patience)
            self._next_stage("scst" if self.config.scst.epochs else "done")
        if self.at.stage == "scst":
            scst = self.config.scst
            self._stage("scst", self._scst_loss, scst.epochs, scst.patience)
            self._next_stage("done")
        return self.at

    def batches_of(self, name: str) -> Batches:
        """The batches of a stage. Raises CaptionError when it was given none."""
        batches = self.batches[name]
        if batches is None:
            raise CaptionError(f"stage {name} has no batches")
        return batches

    def _stage(
        self,
        name: str,
        loss_of: Callable[[Batch], tuple[Tensor, dict[str, float]]],
        epochs: int,
        patience: int | None,
    ) -> None:
        batches = self.batches_of(name)
        patience = epochs if patience is None else patience
        while self.at.epoch < epochs and self.at.bad_epochs < patience:
            started = time.monotonic()
            self.model.train()
            for batch in batches.epoch(self.at.epoch, self.at.step):
                self._update(name, batch, loss_of)
                if time.monotonic() - self.saved > self.config.save_every:
                    self._count(name, started)
                    started = time.monotonic()
                    self._save()
                if self.interrupted():
                    self._count(name, started)
                    self._end_early()
            self._validate(name)
            self._count(name, started)
            self.at.epoch, self.at.step, self.at.losses = self.at.epoch + 1, 0, 0.0
            self._save()
        if self.at.epoch < epochs:
            count = f"{patience} epoch{'' if patience == 1 else 's'}"
            log.info(
                "%s stopped after epoch %d: %s without a better CIDEr-D (%s.patience)",
                *(name, self.at.epoch, count, name),
            )

    def _end_early(self) -> NoReturn:
        """Save the state between two updates, then raise KeyboardInterrupt."""
        self._save()
        raise KeyboardInterrupt(
            f"interrupted in stage {self.at.stage}, epoch {self.at.epoch + 1}, after"
            f" {self.at.step} of its updates; the state is kept in {self.folder / 'last'}, and the"
            " same command continues"
        )

    def _update(
        self,
        name: str,
        batch: Batch,
        loss_of: Callable[[Batch], tuple[Tensor, dict[str, float]]],
    ) -> None:
        stage = self.config.xe if name == "xe" else self.config.scst
        rate = self._rate(name)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss, facts = loss_of(batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise CaptionError(
                f"loss is {value} in stage {name}, epoch {self.at.epoch + 1}, step"
                f" {self.at.step + 1}, images {', '.join(batch.ids)}; {self.folder}/last still"
                " holds a good state: look at these images' features (pipeline cache verify) or"
                f" lower -o {name}.learning_rate"
            )
        loss.backward()
        if stage.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), stage.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.at.step += 1
        self.at.updates += 1
        self.at.losses += value
        line = {"stage": name, "epoch": self.at.epoch + 1, "step": self.at.updates}
        self._log({**line, "loss": value, "lr": rate, **facts})

    def _xe_loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        if batch.tokens is None:
            raise CaptionError("a batch of stage xe has no captions")
        tokens = batch.tokens.to(self.device)  # (R, T + 1)
        valid = tokens[:, 1:] != PAD  # (R, T)
        with self._autocast():
            memory = self.model.encode(batch.features.to(self.device))
            told = self.model.training_pass(memory, tokens[:, :-1], valid)
        targets = tokens[:, 1:][valid]  # (W,)
        loss = cross_entropy(told.logits.float(), targets, self.config.xe.smoothing)
        if told.penalty is not None:
            loss = loss + told.penalty.float()
        return loss, dict(told.facts)

    def _scst_loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Decode without gradients, then score the sampled captions in one pass with them."""
        features = batch.features.to(self.device)
        samples, baseline_words = self._samples(features, len(batch.ids))
        count = samples.tokens.shape[1]
        words = [self.vocabulary.decode(row) for row in samples.tokens.flatten(0, 1).tolist()]
        owners = [image for image in batch.ids for _ in range(count)]
        rewards = self._rewarded(owners, words).view(-1, count)  # (B, K)
        if baseline_words is not None:
            baseline = self._rewarded(batch.ids, baseline_words)[:, None]  # (B, 1)
        elif self.config.scst.baseline == "draws":
            baseline = mean_of_others(rewards)  # (B, K)
        else:
            baseline = rewards.mean(dim=1, keepdim=True)  # (B, 1)
        advantage = (rewards - baseline).flatten()  # (R,)
        tokens = samples.tokens.flatten(0, 1)  # (R, T)
        first = tokens.new_full((len(tokens), 1), BOS)  # (R, 1)
        with self._autocast():
            memory = self.model.encode(features)
            logits = self.model(memory, torch.cat([first, tokens[:, :-1]], dim=1))  # (R, T, V)
        log_probs = word_log_probs(logits.float(), tokens)  # (R, T)
        loss = self_critical(log_probs, advantage, self.config.decoding.max_words)
        ended = (tokens == EOS).any(dim=1).float().mean()
        return loss, {
            "reward": float(rewards.mean()),
            "baseline": float(baseline.mean()),
            "length": sum(map(len, words)) / len(words),
            "ended": float(ended),
        }

    @torch.no_grad()
    def _samples(self, features: Any, images: int) -> tuple[Decoded, list[list[str]] | None]:
        """The sampled captions, and the greedy ones where they are the baseline."""
        scst, length = self.config.scst, self.config.decoding.max_words
        self.model.train(scst.dropout)
        with self._autocast():
            state = self.model.start(self.model.encode(features))
            step = self.model.step
            if scst.baseline == "beams":
                found = beam_search(step, state, images, scst.samples, length, self.device)
                baseline = None
            else:
                draw = generator(self.config.seed, "sample", self.at.epoch, self.at.step)
                if self.device.type != "cpu":
                    seed = draw.initial_seed()
                    draw = torch.Generator(self.device).manual_seed(seed)
                found = sample(step, state, images, scst.samples, length, draw)
                baseline = None
                if scst.baseline == "greedy":
                    best = greedy(step, state, images, length, self.device).tokens[:, 0]  # (B, T)
                    baseline = [self.vocabulary.decode(row) for row in best.tolist()]
        self.model.train()
        return found, baseline

    def _rewarded(self, ids: Sequence[str], captions: Sequence[Sequence[str]]) -> Tensor:
        if self.reward is None:
            raise CaptionError("stage scst has no reward")
        rewards = self.reward(ids, captions)
        return torch.as_tensor(rewards, dtype=torch.float32, device=self.device)

    # around the stages

    def _validate(self, name: str) -> None:
        model = self.model if self.average is None else cast(Captioner, self.average.module)
        model.eval()
        try:
            with torch.no_grad(), self._autocast():
                score = self.validate(model)
        except KeyboardInterrupt:
            self._end_early()
        better = score > self.at.best
        self.at.bad_epochs = 0 if better else self.at.bad_epochs + 1
        kept = "best" if better else ""
        if not better and max(score, self.at.best) < SPEECHLESS:
            # Between captions that fit by chance the later weights are the better ones.
            better, kept = True, "kept as the latest: no captions yet that fit"
        mean = self.at.losses / self.at.step if self.at.step else math.nan
        line = {"stage": name, "epoch": self.at.epoch + 1, "step": self.at.updates}
        self._log({**line, "validation": {"CIDEr": score}, "best": better})
        log.info(
            "%s epoch %d: loss %.4f, validation CIDEr-D %.1f%s",
            *(name, self.at.epoch + 1, mean, 100 * score, f" ({kept})" if kept else ""),
        )
        if better:
            self.at.best = score
            meta = {**self.facts, "stage": name, "epoch": self.at.epoch + 1, "cider": score}
            checkpoint.save(self.folder / "best", model, meta, None)

    def _next_stage(self, name: str) -> None:
        """Continue from the best weights so far; the best score stays the one to beat."""
        if name == "scst":
            best = checkpoint.find(self.folder / "best")
            if best is None:
                raise CaptionError(
                    f"{self.folder}: no validated checkpoint to continue from; xe.epochs is"
                    f" {self.config.xe.epochs}, wanted 1 or more"
                )
            checkpoint.load_model(best, self.model)
            self.optimizer, self.average = self._optimizer(name), self._average()
        self.at.stage, self.at.epoch, self.at.step, self.at.losses = name, 0, 0, 0.0
        self.at.updates = self.at.bad_epochs = 0
        self._save()

    def _optimizer(self, name: str) -> torch.optim.Optimizer:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if name == "scst":
            return torch.optim.Adam(parameters, lr=0.0, betas=self.config.scst.betas, fused=True)
        xe = self.config.xe
        kind = torch.optim.AdamW if xe.weight_decay else torch.optim.Adam
        return kind(
            parameters,
            lr=0.0,
            betas=xe.betas,
            eps=xe.epsilon,
            weight_decay=xe.weight_decay,
            fused=True,
        )

    def _average(self) -> AveragedModel | None:
        """The running mean of the weights, which begins with those after the next update."""
        if not self.config.average:
            return None
        mean = get_ema_multi_avg_fn(self.config.average)
        return AveragedModel(self.model, multi_avg_fn=mean)

    def _rate(self, name: str) -> float:
        """The learning rate of the coming update."""
        if name == "scst":
            return self.config.scst.learning_rate
        total = self.config.xe.epochs * self.batches_of("xe").steps
        return scheduled(self.config.xe, self.at.updates, self.at.epoch, total)

    def _autocast(self) -> torch.autocast:
        enabled = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    # what is written

    def _log(self, line: dict[str, Any]) -> None:
        with checkpoint.writing(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _count(self, name: str, started: float) -> None:
        spent = self.at.seconds.get(name, 0.0) + time.monotonic() - started
        self.at.seconds[name] = spent

    def _save(self) -> None:
        with checkpoint.writing(self.metrics), self.metrics.open("rb") as file:
            os.fsync(file.fileno())
        self.at.metrics_bytes = self.metrics.stat().st_size
        state: dict[str, Any] = {
            "position": dict(vars(self.at)),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self.average is not None:
            state["average"] = self.average.state_dict()
        if self.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self.device)
        meta = {**self.facts, "stage": self.at.stage, "epoch": self.at.epoch}
        checkpoint.save(self.folder / "last", self.model, meta, state)
        self.saved = time.monotonic()

    def _resume(self) -> None:
        state = checkpoint.load_last(self.folder, self.model)
        self.at = Position(**state["position"])
        self.optimizer = self._optimizer("scst" if self.at.stage == "scst" else "xe")
        if self.at.stage != "done":
            self.optimizer.load_state_dict(state["optimizer"])
            if self.average is not None:
                self.average.load_state_dict(state["average"])
        torch.set_rng_state(state["random"])
        if "random_cuda" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], self.device)
        os.truncate(self.metrics, self.at.metrics_bytes)
        if self.at.stage == "done":
            log.info("%s: training is finished", self.folder)
        else:
            where = (self.at.stage, self.at.epoch + 1, self.at.step)
            log.info("going on at %s epoch %d, behind step %d", *where)
