"""The Meshed-Memory Transformer beside its official code: decoding and both kinds of training.

    python benchmarks/captioner.py REFERENCE [--parts decode,xe,grouped,scst] [--images 50]
        [--repeats 3] [--threads 2]

REFERENCE is a checkout of aimagelab/meshed-memory-transformer. What today's PyTorch no longer
runs of it is put right as it is imported, in memory: `/` between whole numbers in its beam search,
masks of bytes. No arithmetic is changed. Both sides have the same random weights at full size, the
same 50 made-up regions per image and dropout 0; the word that ends a caption is made likelier with
its position, so that captions have about 10 words.

    decode   beam search, 5 beams, the best caption of each of --images images
    xe       one update on --images single (image, caption) pairs
    grouped  one update on 10 images with 5 captions each: the official code encodes the image
             once per caption, ours once
    scst     one self-critical update on 10 images with 5 beams; captions are tokens already, so
             that the official side starts no Java

Each side of each part runs in its own process. Prints one line of JSON: per part the best seconds
of wall and CPU time, peak memory, how many times longer the official code takes, and the greatest
difference of what both must agree on (log-probabilities; losses, gradient norms, rewards).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caption.batches import padded
from caption.decode import beam_search
from caption.features import Features
from caption.importers import meshed_memory as release
from caption.losses import cross_entropy, self_critical, word_log_probs
from caption.models.meshed_memory import SLOTS, MeshedMemoryConfig
from caption.transformer import Transformer
from caption.vocabulary import BOS, EOS, PAD
from evaluate.cider import CiderReward, DocumentFrequency

WORDS, ROWS, WIDTH, BEAMS, STEPS = 10201, 50, 2048, 5, 20
REPAIRS = {b"selected_idx / ": b"selected_idx // ", b".byte()": b".bool()"}
PARTS = ("decode", "xe", "grouped", "scst")


class Repaired(importlib.machinery.SourceFileLoader):
    """Loads a module of the reference with `REPAIRS` made, and leaves no file behind."""

    def get_data(self, path: Any) -> bytes:
        data = super().get_data(path)
        for old, new in REPAIRS.items():
            data = data.replace(old, new)
        return data

    def path_stats(self, path: Any) -> Any:
        raise OSError("no cached bytecode")


def official(reference: Path, model: Transformer) -> Any:
    """The official captioner with our model's weights."""
    finder = importlib.machinery.FileFinder.path_hook((Repaired, [".py"]))

    def hook(path: str) -> Any:
        if not Path(path).is_relative_to(reference):
            raise ImportError
        return finder(path)

    sys.path_hooks.insert(0, hook)
    sys.path.insert(0, str(reference))
    parts = importlib.import_module("models.transformer")
    settings = {"attention_module": parts.ScaledDotProductAttentionMemory}
    encoder = parts.MemoryAugmentedEncoder(
        3, 0, attention_module_kwargs={"m": 40}, dropout=0.0, **settings
    )
    decoder = parts.MeshedDecoder(WORDS, 54, 3, PAD, dropout=0.0)
    captioner = parts.Transformer(BOS, encoder, decoder)
    own, names = model.state_dict(), release.names(model.config)  # type: ignore[arg-type]
    state = {other: own[name] for name, other in names.items()}
    missing, unexpected = captioner.load_state_dict(state, strict=False)
    if unexpected or any("running_" not in name for name in missing):
        raise SystemExit(f"the reference has other weights: {missing} {unexpected}")
    return captioner


def our_model() -> Transformer:
    torch.manual_seed(1)
    config = MeshedMemoryConfig(rows=ROWS, attend_padding=True, positions="random", dropout=0.0)
    model = Transformer(config, in_width=WIDTH, vocabulary=WORDS, slots=SLOTS)
    with torch.no_grad():
        model.features.norm.bias.fill_(0.01)
        end = torch.nn.functional.normalize(torch.randn(config.width), dim=0)  # (D,)
        place = torch.arange(len(model.positions), dtype=torch.float32)  # (P,)
        model.positions += 0.3 * (place - 6.0)[:, None] * end
        model.output.weight *= 10.0
        model.output.weight[EOS] = 4.0 * end
    return model


def our_features(images: int) -> Features:
    random = torch.Generator().manual_seed(2)
    rows = torch.randn(images, ROWS, WIDTH, generator=random).relu()
    mask = torch.ones(images, ROWS, dtype=torch.bool)
    return Features(
        rows={"regions": rows},
        mask={"regions": mask},
        boxes={"regions": torch.zeros(images, ROWS, 4)},
        sizes=torch.ones(images, 2),
        grid_shape={},
    )


def made_up(count: int) -> Tensor:
    """Captions (count, T) of 9 to 12 words."""
    random = torch.Generator().manual_seed(3)
    lengths = torch.randint(9, 13, (count,), generator=random).tolist()
    return padded(
        [
            [BOS, *torch.randint(4, WORDS, (length,), generator=random).tolist(), EOS]
            for length in lengths
        ]
    )


def decoded(model: Transformer, features: Features, keep: int) -> Any:
    images = len(features.sizes)
    with torch.no_grad():
        state = model.start(model.encode(features))
        return beam_search(model.step, state, images, BEAMS, STEPS, torch.device("cpu"), keep)


def words_of(rows: Tensor) -> list[list[str]]:
    """Token rows (R, T) as words up to the end."""
    found = []
    for row in rows.tolist():
        end = row.index(EOS) if EOS in row else len(row)
        found.append([f"w{number}" for number in row[:end]])
    return found


def references(model: Transformer, features: Features) -> list[list[str]]:
    """Two captions per image near to what the model says, for a reward that is not zero."""
    found = words_of(decoded(model, features, BEAMS).tokens.flatten(0, 1))
    each = [found[first : first + BEAMS] for first in range(0, len(found), BEAMS)]
    return [[" ".join(beams[0][:6]), " ".join(beams[-1][2:])] for beams in each]


def norm(model: torch.nn.Module) -> float:
    return float(
        torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    )


class Side:
    """What is timed of one side; every method returns the numbers both sides must agree on."""

    def __init__(self, images: int) -> None:
        self.images = images
        self.model = our_model()

    def prepare(self, part: str) -> None:
        count = 10 if part in ("grouped", "scst") else self.images
        self.features = our_features(count)
        self.captions = made_up(50 if part == "grouped" else count)
        if part == "scst":
            self.references = references(self.model, self.features)


class Ours(Side):
    def prepare(self, part: str) -> None:
        super().prepare(part)
        self.model.train(part != "decode")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0, fused=True)
        if part == "scst":
            table = {str(n): texts for n, texts in enumerate(self.references)}
            self.reward = CiderReward(table, DocumentFrequency.build(table, "caption"))

    def decode(self) -> dict[str, Any]:
        found = decoded(self.model, self.features, 1)
        length = (found.tokens != PAD).sum(dim=-1).float().mean()
        return {"scores": found.scores[:, 0].tolist(), "length": float(length)}

    def xe(self) -> dict[str, Any]:
        memory = self.model.encode(self.features)
        targets = self.captions[:, 1:]
        valid = targets != PAD
        told = self.model.training_pass(memory, self.captions[:, :-1], valid)
        return self._update(cross_entropy(told.logits, targets[valid]))

    grouped = xe

    def scst(self) -> dict[str, Any]:
        tokens = decoded(self.model, self.features, BEAMS).tokens.flatten(0, 1)  # (R, T)
        ids = [str(n) for n in range(len(self.references)) for _ in range(BEAMS)]
        rewards = torch.tensor(self.reward.reward(ids, words_of(tokens))).float().view(-1, BEAMS)
        first = tokens.new_full((len(tokens), 1), BOS)  # (R, 1)
        memory = self.model.encode(self.features)
        logits = self.model(memory, torch.cat([first, tokens[:, :-1]], dim=1))
        advantage = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
        loss = self_critical(word_log_probs(logits, tokens), advantage, STEPS)
        return {**self._update(loss), "rewards": rewards.flatten().tolist()}

    def _update(self, loss: Tensor) -> dict[str, Any]:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": float(loss.detach()), "gradient": norm(self.model)}


class Official(Side):
    def __init__(self, images: int, reference: Path) -> None:
        super().__init__(images)
        self.theirs = official(reference, self.model)
        self.reference = reference

    def prepare(self, part: str) -> None:
        super().prepare(part)
        del self.model
        self.theirs.train(part != "decode")
        self.optimizer = torch.optim.Adam(
            [p for p in self.theirs.parameters() if p.requires_grad], lr=0.0
        )
        self.rows = self.features.rows["regions"]
        if part == "scst":
            cider = importlib.import_module("evaluation.cider.cider")
            flat = [text for texts in self.references for text in texts]
            corpus = {n: [text] for n, text in enumerate(flat)}
            self.cider = cider.Cider(corpus)

    def decode(self) -> dict[str, Any]:
        with torch.no_grad():
            ids, values = self.theirs.beam_search(self.rows, STEPS, EOS, BEAMS, out_size=1)
        ended = (ids == EOS).cumsum(-1) - (ids == EOS).long()
        length = (ended == 0).sum(dim=-1).float().mean()
        return {"scores": values.sum(dim=-1).tolist(), "length": float(length)}

    def xe(self) -> dict[str, Any]:
        return self._cross_entropy(self.rows)

    def grouped(self) -> dict[str, Any]:
        return self._cross_entropy(self.rows.repeat_interleave(5, dim=0))

    def _cross_entropy(self, rows: Tensor) -> dict[str, Any]:
        out = self.theirs(rows, self.captions)[:, :-1].contiguous()
        targets = self.captions[:, 1:].contiguous()
        loss = torch.nn.NLLLoss(ignore_index=PAD)(out.view(-1, WORDS), targets.view(-1))
        return self._update(loss)

    def scst(self) -> dict[str, Any]:
        ids, values = self.theirs.beam_search(self.rows, STEPS, EOS, BEAMS, out_size=BEAMS)
        words = [" ".join(line) for line in words_of(ids.flatten(0, 1))]
        given = {n: [line] for n, line in enumerate(words)}
        wanted = {n: self.references[n // BEAMS] for n in range(len(words))}
        rewards = self.cider.compute_score(wanted, given)[1].astype(np.float32)
        table = torch.from_numpy(rewards).view(-1, BEAMS)
        advantage = table - table.mean(dim=-1, keepdim=True)
        loss = (-values.mean(dim=-1) * advantage).mean()
        return {**self._update(loss), "rewards": rewards.tolist()}

    def _update(self, loss: Tensor) -> dict[str, Any]:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": float(loss.detach()), "gradient": norm(self.theirs)}


def timed(step: Callable[[], dict[str, Any]], repeats: int) -> dict[str, Any]:
    best = {"wall": float("inf"), "cpu": float("inf")}
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        found = step()
        best["wall"] = min(best["wall"], time.perf_counter() - wall)
        best["cpu"] = min(best["cpu"], time.process_time() - cpu)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {**best, "peak_gb": round(peak, 2), "found": found}


def child(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    if options.side == "ours":
        side: Side = Ours(options.images)
    else:
        side = Official(options.images, options.reference.resolve())
    side.prepare(options.parts)
    print(json.dumps(timed(getattr(side, options.parts), options.repeats)))


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Relative to the greatest number of each kind."""
    found = {}
    for key, value in ours.items():
        a, b = np.atleast_1d(value), np.atleast_1d(theirs[key])
        found[key] = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["ours", "official"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        child(options)
        return
    result: dict[str, Any] = {"images": options.images, "threads": options.threads}
    for part in options.parts.split(","):
        sides = {}
        for side in ("official", "ours"):
            command = [sys.executable, __file__, str(options.reference), "--parts", part]
            command += ["--images", str(options.images), "--repeats", str(options.repeats)]
            command += ["--threads", str(options.threads), "--side", side]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            sides[side] = json.loads(done.stdout.splitlines()[-1])
        ours, theirs = sides["ours"].pop("found"), sides["official"].pop("found")
        result[part] = {
            **sides,
            "official_takes_times": {
                key: round(sides["official"][key] / sides["ours"][key], 2)
                for key in ("wall", "cpu")
            },
            "relative_difference": difference(ours, theirs),
            **({"length": ours["length"]} if part == "decode" else {}),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
