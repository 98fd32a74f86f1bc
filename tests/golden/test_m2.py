"""The Meshed-Memory Transformer against numbers of its release."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from caption.batches import Batch
from caption.config import CrossEntropyConfig, SelfCriticalConfig, TrainingConfig
from caption.decode import Decoded, beam_search, greedy
from caption.features import Features
from caption.importers import meshed_memory as release
from caption.losses import cross_entropy
from caption.models.meshed_memory import SLOTS, MeshedMemoryConfig
from caption.trainer import Trainer
from caption.transformer import Transformer
from caption.vocabulary import EOS, PAD, SPECIALS, Vocabulary
from evaluate.cider import CiderReward, DocumentFrequency

CPU = torch.device("cpu")
STEPS = 20  # of the golden decoding
ACTIVATIONS = LOG_PROBS = GRADIENTS = 1e-4
LOSS = 1e-5


def golden(golden_dir: Path) -> Path:
    folder = golden_dir / "m2"
    if not folder.is_dir():
        pytest.skip(f"no golden cases in {folder}")
    return folder


def features_of(rows: Tensor, counts: Tensor) -> Features:
    mask = torch.arange(rows.shape[1]) < counts[:, None]  # (B, N)
    return Features(
        rows={"regions": rows},
        mask={"regions": mask},
        boxes={"regions": torch.zeros(*mask.shape, 4)},
        sizes=torch.ones(len(rows), 2),
        grid_shape={},
    )


@dataclass
class Case:
    """One golden case with our model filled with its weights."""

    folder: Path
    sizes: dict[str, Any]
    config: MeshedMemoryConfig
    model: Transformer
    meta: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    def tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / f"{name}.safetensors")

    def features(self) -> Features:
        inputs = self.tensors("inputs")
        return features_of(inputs["features"], inputs["n_regions"])

    def fresh(self) -> Transformer:
        return build(self.folder / "weights.safetensors", self.sizes, self.config)


def config_of(folder: Path, weights: str = "weights") -> tuple[dict[str, Any], MeshedMemoryConfig]:
    sizes = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / f"{weights}.safetensors")
    config = release.config_of(tensors, heads=sizes["h"], rows=sizes["max_regions"])
    config = replace(config, dropout=0.0)
    wanted = {
        "width": sizes["d_model"],
        "head_width": sizes["d_k"],
        "value_width": sizes["d_v"],
        "feed_forward": sizes["d_ff"],
        "encoder_layers": sizes["N_enc"],
        "decoder_layers": sizes["N_dec"],
        "memory": sizes["m"] if sizes["memory"] else 0,
        "max_words": sizes["max_len"],
    }
    assert {key: getattr(config, key) for key in wanted} == wanted, folder.name
    return sizes, config


def build(path: Path, sizes: dict[str, Any], config: MeshedMemoryConfig) -> Transformer:
    weights = {n: t for n, t in load_file(path).items() if "running_" not in n}
    model = Transformer(config, in_width=sizes["d_in"], vocabulary=sizes["vocab_size"], slots=SLOTS)
    model.load_state_dict(release.renamed(weights, config))
    return model.eval()


@pytest.fixture(scope="module")
def cases(golden_dir: Path) -> list[Case]:
    folder = golden(golden_dir)
    found = []
    for path in sorted(folder.glob("*/weights.safetensors")):
        sizes, config = config_of(path.parent)
        meta = json.loads((path.parent / "meta.json").read_text())
        found.append(Case(path.parent, sizes, config, build(path, sizes, config), meta))
    assert found, f"no golden cases in {folder}"
    return found


def close(found: Tensor, wanted: Tensor, limit: float, what: str) -> None:
    worst = float((found.detach() - wanted).abs().max())
    assert worst <= limit, f"{what} differs by {worst}, wanted <= {limit}"


def test_encoder_with_padding_attended(cases: list[Case]) -> None:
    for case in cases:
        wanted, features = case.tensors("encoder"), case.features()
        with torch.no_grad():
            x, _ = case.model.features(features)
            levels = torch.stack(case.model.encode(features).levels, dim=1)  # (B, L, N, D)
        close(x, wanted["input_proj"], ACTIVATIONS, f"{case.name} input")
        close(levels, wanted["enc_out"], ACTIVATIONS, f"{case.name} encoder")
        more = replace(case.config, rows=wanted["enc_out_pad_plus4"].shape[2])
        wider = build(case.folder / "weights.safetensors", case.sizes, more)
        with torch.no_grad():
            levels = torch.stack(wider.encode(features).levels, dim=1)  # (B, L, N + 4, D)
        close(levels, wanted["enc_out_pad_plus4"], ACTIVATIONS, f"{case.name} 4 more rows")


def test_masking_the_padding_is_what_the_release_does_not_do(cases: list[Case]) -> None:
    """With `attend_padding` off, rows added to an image change nothing; the release's do."""
    for case in cases:
        off = replace(case.config, rows=None, attend_padding=False)
        model = build(case.folder / "weights.safetensors", case.sizes, off)
        features = case.features()
        real = int(case.tensors("inputs")["n_regions"].min())
        with torch.no_grad():
            levels = torch.stack(model.encode(features).levels, dim=1)[:, :, :real]
        wanted = case.tensors("encoder")["enc_out"][:, :, :real]
        full = case.tensors("inputs")["n_regions"] == wanted.shape[2]
        assert (levels - wanted)[~full].abs().amax() > 10 * ACTIVATIONS


def test_teacher_forced_logits(cases: list[Case]) -> None:
    for case in cases:
        captions, wanted = case.tensors("inputs")["captions"], case.tensors("teacher")
        real = (captions != PAD)[..., None]  # (R, T, 1)
        with torch.no_grad():
            logits = case.model(case.model.encode(case.features()), captions)
        close(logits * real, wanted["logits"] * real, ACTIVATIONS, f"{case.name} logits")
        log_probs = logits.log_softmax(-1)
        close(log_probs * real, wanted["log_probs"] * real, LOG_PROBS, f"{case.name} log-probs")


def test_cross_entropy_and_gradients(cases: list[Case]) -> None:
    for case in cases:
        captions, model = case.tensors("inputs")["captions"], case.model
        model.zero_grad()
        logits = model(model.encode(case.features()), captions[:, :-1])
        loss = cross_entropy(logits, captions[:, 1:])
        assert float(loss.detach()) == pytest.approx(case.meta["xe_loss"], abs=LOSS), case.name
        loss.backward()
        same_gradients(case, case.tensors("xe_grads"), case.meta["xe_grad_norm_per_param"])


def same_gradients(case: Case, wanted: dict[str, Tensor], norms: dict[str, float]) -> None:
    own = dict(case.model.named_parameters())
    official = {
        other: own[name] for name, other in release.names(case.config).items() if name in own
    }
    assert set(official) == set(norms)
    for name, tensor in wanted.items():
        found = official[name].grad
        assert found is not None, name
        limit = GRADIENTS * float(tensor.abs().max())
        close(found, tensor, limit, f"{case.name} gradient of {name}")
    for name, norm in norms.items():
        found = official[name].grad
        assert found is not None, name
        assert float(found.norm()) == pytest.approx(norm, rel=1e-3, abs=1e-6), name


def to_end(tokens: Tensor) -> Tensor:
    """Golden tokens (.., T), which go on as 0 or as words behind the end, padded there."""
    ended = (tokens == EOS).cumsum(dim=-1) - (tokens == EOS).long()
    return tokens.masked_fill(ended > 0, PAD)


def filled(found: Tensor, value: float = PAD) -> Tensor:
    """(.., t) with `value` up to the length of the golden decoding."""
    return torch.nn.functional.pad(found, (0, STEPS - found.shape[-1]), value=value)


def same_beams(found: Decoded, wanted: dict[str, Tensor], what: str) -> None:
    assert torch.equal(filled(found.tokens), to_end(wanted["ids"])), what
    close(filled(found.log_probs, 0.0), wanted["word_log_probs"], LOG_PROBS, what)
    if "seq_log_prob" in wanted:
        close(found.scores, wanted["seq_log_prob"], LOG_PROBS, f"{what} sums")


def beam_files(folder: Path, start: str) -> list[tuple[int, str]]:
    names = [path.stem for path in folder.glob(f"{start}*.safetensors")]
    return sorted((int(name[len(start) :]), name) for name in names if name[len(start) :].isdigit())


def test_beam_search(cases: list[Case]) -> None:
    for case in cases:
        found = beam_files(case.folder, "beam")
        assert found
        with torch.no_grad():
            state = case.model.start(case.model.encode(case.features()))
            for beams, name in found:
                images = len(case.features().sizes)
                got = beam_search(case.model.step, state, images, beams, STEPS, CPU)
                same_beams(got, case.tensors(name), f"{case.name} {name}")


def test_the_best_beam_alone_is_the_same(cases: list[Case]) -> None:
    for case in cases:
        with torch.no_grad():
            state = case.model.start(case.model.encode(case.features()))
            for beams, name in beam_files(case.folder, "beam"):
                images = len(case.features().sizes)
                got = beam_search(case.model.step, state, images, beams, STEPS, CPU, keep=1)
                best = {key: tensor[:, :1] for key, tensor in case.tensors(name).items()}
                same_beams(got, best, f"{case.name} {name} best")


def test_greedy(cases: list[Case]) -> None:
    for case in cases:
        wanted = case.tensors("greedy")
        with torch.no_grad():
            state = case.model.start(case.model.encode(case.features()))
            found = greedy(case.model.step, state, len(wanted["ids"]), STEPS, CPU)
        ids = to_end(wanted["ids"])
        assert torch.equal(filled(found.tokens[:, 0]), ids), case.name
        words = (ids != PAD) & (ids != EOS)  # the release zeroes from the end on
        chosen = wanted["log_probs"].gather(2, ids[..., None])[..., 0]  # (B, T)
        close(filled(found.log_probs[:, 0], 0.0) * words, chosen * words, LOG_PROBS, case.name)


class Fixed:
    """Stands in for the batches of a stage: the same ones each epoch."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches, self.steps = batches, len(batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from self.batches[start:]


def trainer(
    model: Transformer, config: TrainingConfig, folder: Path, batches: Any, **more: Any
) -> Trainer:
    words = model.output.out_features
    return Trainer(
        model,
        config,
        folder,
        xe=batches,
        scst=batches,
        vocabulary=more.get("vocabulary")
        or Vocabulary([*SPECIALS, *(f"w{n}" for n in range(words - 4))]),
        validate=lambda model: 0.0,
        reward=more.get("reward"),
        device=CPU,
        facts={},
    )


def test_self_critical_reward_loss_and_gradients(cases: list[Case], tmp_path: Path) -> None:
    for case in cases:
        text = json.loads((case.folder / "scst.json").read_text())
        ids = tuple(str(n) for n in range(len(text["refs"])))
        references = dict(zip(ids, text["refs_tokenized"], strict=True))
        corpus = {str(n): [line] for n, line in enumerate(text["train_corpus_tokenized"])}
        scorer = CiderReward(references, DocumentFrequency.build(corpus, "caption"))
        files = beam_files(case.folder, "scst_beam")
        assert files
        for beams, name in files:
            wanted, facts = case.tensors(name), text[name.removeprefix("scst_")]
            rewards: list[np.ndarray] = []

            def reward(
                images: Any, captions: Any, kept: Any = rewards, scorer: Any = scorer
            ) -> np.ndarray:
                kept.append(scorer.reward(images, captions))
                return kept[-1]

            batch = Batch(ids=ids, features=case.features())
            config = TrainingConfig(scst=SelfCriticalConfig(samples=beams, epochs=1))
            vocabulary = Vocabulary(text["vocab"])
            training = trainer(
                case.model, config, tmp_path, Fixed([batch]), vocabulary=vocabulary, reward=reward
            )
            case.model.zero_grad()
            loss, logged = training._scst_loss(batch)
            loss.backward()
            found = torch.tensor(rewards[0]).view(-1, beams)
            close(found, wanted["reward"].double(), 1e-6, f"{case.name} {name} reward")
            baseline = float(wanted["baseline"].mean())
            assert logged["baseline"] == pytest.approx(baseline, abs=1e-6)
            assert float(loss.detach()) == pytest.approx(facts["loss"], abs=LOSS)
            gradients = case.tensors(f"{name}_grads")
            same_gradients(case, gradients, facts["grad_norm_per_param"])
        case.model.eval()


def test_cross_entropy_training_follows_the_release(cases: list[Case], tmp_path: Path) -> None:
    for case in cases:
        wanted = json.loads((case.folder / "xe_trajectory.json").read_text())
        tensors, folder = case.tensors("xe_batches"), tmp_path / case.name
        folder.mkdir()
        batches = []
        for n in range(wanted["iterations_per_epoch"]):
            rows = tensors[f"features{n}"]
            counts = (rows != 0).any(dim=-1).sum(dim=-1)
            ids = tuple(map(str, range(len(rows))))
            features = features_of(rows, counts)
            batches.append(Batch(ids=ids, features=features, tokens=tensors[f"captions{n}"]))
        peak = (case.config.width * wanted["warmup"]) ** -0.5
        xe = CrossEntropyConfig(
            epochs=wanted["epochs"],
            learning_rate=peak,
            warmup=wanted["warmup"],
            schedule="m2",
        )
        model = case.fresh()
        trainer(model, TrainingConfig(xe=xe), folder, Fixed(batches)).run()
        lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
        updates = [line for line in lines if "loss" in line]
        losses = [line["loss"] for line in updates]
        assert losses == pytest.approx(wanted["loss_per_iteration"], abs=LOSS), case.name
        rates = [line["lr"] for line in updates]
        assert rates == pytest.approx(wanted["lr_used"], rel=1e-12), case.name
        named = release.names(case.config)
        state = {other: model.state_dict()[own] for own, other in named.items()}
        for name, total in wanted["final_param_sums"].items():
            assert float(state[name].double().sum()) == pytest.approx(total, abs=1e-3), name
