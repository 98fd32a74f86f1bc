"""A recipe, captions and features made into a run: the glue of `pipeline train`."""

from __future__ import annotations

import logging
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from caption import checkpoint
from caption.batches import Batches, Example, FeatureSource
from caption.captioner import Captioner
from caption.config import TrainingConfig
from caption.data import read_captions
from caption.registry import stream_widths
from caption.trainer import SPEECHLESS, Position, Reward, Trainer
from caption.transformer import count_parameters
from caption.vocabulary import Vocabulary
from evaluate.cider import CiderReward, DocumentFrequency, cider_d
from evaluate.document_frequency import Document
from extract.cache import FeatureCache
from extract.lock import Lock
from extract.writer import ALL
from pipeline import recipe as recipes
from pipeline import word_vectors
from pipeline.decoding import decode_ids
from pipeline.entries import read_json
from pipeline.errors import PipelineError
from pipeline.files import write_text
from pipeline.processes import Interruption
from pipeline.recipe import Recipe
from pipeline.run_folder import RunFolder, open_run
from pipeline.texts import Texts, as_scored, texts_of, vocabulary_of

log = logging.getLogger(__name__)

_SPEAKING = 250  # updates after which captions of generated scenes begin to make sense
EOS_WORD = "<eos>"  # the end of the sentence in rewards that count it


def train(
    recipe: Recipe, captions: Path, features: Path, out: Path, device: torch.device
) -> tuple[RunFolder, Position]:
    """Train, or go on training, the run in `out`; returns it and where training ended.

    Raises PipelineError when `out` holds a run made otherwise, and KeyboardInterrupt when
    interrupted; once updates have begun, the state is saved first.
    """
    word_vectors.check_settings(recipe)
    recipe = _with_whole_paths(recipe)
    cache = FeatureCache(features)
    widths = {name: stream.width for name, stream in cache.streams.items()}
    stream_widths(recipe.model_config(), widths)
    data = read_captions(captions)
    run = RunFolder(
        path=out,
        recipe=recipe,
        captions=captions.resolve(),
        features=features.resolve(),
        fingerprint=cache.fingerprint(),
        widths=widths,
    )
    texts = texts_of(data, recipe, cache)
    vocabulary, extra = vocabulary_of(data, texts, recipe)
    torch.manual_seed(recipe.seed)
    model = run.build(vocabulary)  # before anything is written: a refused start leaves no folder
    vectors = None
    if recipe.vocabulary.vectors is not None and checkpoint.find(out / "last") is None:
        vectors = word_vectors.find_vectors(recipe, vocabulary, extra)
        vectors.put_into(model)
    with _alone(out):
        _describe(run, vocabulary, vectors)
        return run, _trained(run, model, cache, texts, vocabulary, device)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold a run's folder, so that no two processes train in it."""
    lock = Lock(out, ALL)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise PipelineError(f"{out}: cannot be written ({error.strerror or error})") from error
    try:
        yield
    finally:
        lock.release()


def _trained(
    run: RunFolder,
    model: Captioner,
    cache: FeatureCache,
    texts: Texts,
    vocabulary: Vocabulary,
    device: torch.device,
) -> Position:
    recipe = run.recipe
    log.info(
        "%s: %d parameters, %d words, %d training and %d validation images, %s",
        *(recipe.model_name(), count_parameters(model), len(vocabulary), len(texts.train)),
        *(len(texts.validation), device),
    )
    interruption = Interruption()
    trainer = _trainer(run, model, cache, texts, vocabulary, device, interruption)
    updates = recipe.xe.epochs * trainer.batches_of("xe").steps
    if recipe.xe.schedule != "epochs" and recipe.xe.warmup >= updates:
        log.warning(
            "xe.warmup is %d updates, but the whole stage has %d: the learning rate never gets to"
            " its peak; lower it: -o xe.warmup=%d",
            *(recipe.xe.warmup, updates, max(1, updates // 10)),
        )
    with interruption:
        position = trainer.run()
    if position.best < SPEECHLESS:
        enough = math.ceil(_SPEAKING / trainer.batches_of("xe").steps)
        log.warning(
            "the best validation CIDEr-D is %.1f: this captioner's captions are empty or hold"
            " next to nothing that fits. Train into another --out with more epochs"
            " (-o xe.epochs=%d) or, as long as the loss keeps falling, a higher rate"
            " (-o xe.learning_rate=%g)",
            100 * position.best,
            max(5 * recipe.xe.epochs, enough),
            3 * recipe.xe.learning_rate,
        )
    return position


def _trainer(
    run: RunFolder,
    model: Captioner,
    cache: FeatureCache,
    texts: Texts,
    vocabulary: Vocabulary,
    device: torch.device,
    interruption: Interruption,
) -> Trainer:
    recipe = run.recipe
    shuffled = recipe.data.shuffle_features
    source = FeatureSource(
        cache,
        model.needs,
        shuffled=shuffled,
        seed=recipe.seed,
        views=[FeatureCache(view) for view in recipe.data.views],
        hidden_rows=recipe.data.hidden_rows,
        names=texts.names,
    )
    examples = [Example(image_id=i, captions=tuple(c)) for i, c in texts.train.items() if c]

    def batches(stage: str, words: Vocabulary | None, images: int, captions: int) -> Batches:
        return Batches(
            examples,
            source,
            words,
            images=images,
            captions=captions,
            max_words=recipe.data.max_words,
            seed=recipe.seed,
            stage=stage,
        )

    scst = recipe.scst
    return Trainer(
        model,
        recipe,
        run.path,
        xe=batches("xe", vocabulary, recipe.xe.images, recipe.xe.captions),
        scst=batches("scst", None, scst.images, 1) if scst.epochs else None,
        vocabulary=vocabulary,
        validate=_validation(
            recipe, source, texts.validation_references, vocabulary, device, interruption
        ),
        reward=_reward(recipe, texts.train_references) if scst.epochs else None,
        device=device,
        facts={
            "model": recipe.model_name(),
            "versions": {"torch": version("torch"), "python": platform.python_version()},
        },
        interrupted=lambda: interruption.noted,
    )


def _with_whole_paths(recipe: Recipe) -> Recipe:
    """The recipe with the files it names as paths from anywhere."""
    words = recipe.vocabulary
    vectors, extra = (
        None if p is None else str(Path(p).resolve()) for p in (words.vectors, words.extra)
    )
    views = tuple(str(Path(view).resolve()) for view in recipe.data.views)
    return replace(
        recipe,
        data=replace(recipe.data, views=views),
        vocabulary=replace(words, vectors=vectors, extra=extra),
    )


def _describe(
    run: RunFolder, vocabulary: Vocabulary, vectors: word_vectors.GivenVectors | None
) -> None:
    """Write `config.yaml`, `vocab.json`, `vectors.json`, or see that those there are the same.

    Features and captions that were moved may go by their new paths, which are written then.
    """
    config = run.path / "config.yaml"
    wanted = recipes.to_plain(run.settings())
    if config.exists():
        # opened, not only read: settings that came with a later version have their defaults
        found = recipes.to_plain(open_run(run.path).settings())
        moved = {
            k: wanted[k] for k in ("features", "captions") if not Path(found[k] or "").exists()
        }
        found.update(moved)
        lines = recipes.setting_differences(found, wanted)
        if lines:
            shown = "\n  ".join(lines)
            raise PipelineError(
                f"{run.path} holds a run with other settings (there / asked for):\n  {shown}\n"
                "give another --out, or the settings of the first time"
            )
        lines = run.vocabulary().differences(vocabulary)
        if lines:
            raise PipelineError(
                f"{run.path}: the captions now give another vocabulary ({'; '.join(lines)}); give"
                " another --out, or the captions of the first time"
            )
        record = run.path / word_vectors.FILE
        if vectors is not None and read_json(record) != vectors.record:
            raise PipelineError(
                f"{record}: the file of vectors is another now (sha256"
                f" {vectors.record['sha256']}); give another --out, or the file of the first time"
            )
        if moved:
            write_text(config, recipes.dump(wanted))
        return
    names = {path.name for path in run.path.iterdir() if not path.name.startswith(".lock")}
    strange = names - {"vocab.json", word_vectors.FILE}
    if strange:
        raise PipelineError(
            f"{run.path} is no run folder but holds {', '.join(sorted(strange)[:5])}; give an empty"
            " or new folder as --out"
        )
    write_text(run.path / "vocab.json", vocabulary.to_json())
    if vectors is not None:
        write_text(run.path / word_vectors.FILE, word_vectors.to_json(vectors.record))
    write_text(config, recipes.dump(wanted))


def _validation(
    config: TrainingConfig,
    source: FeatureSource,
    references: dict[str, list[str]],
    vocabulary: Vocabulary,
    device: torch.device,
    interruption: Interruption,
) -> Callable[[Captioner], float]:
    """CIDEr-D of the validation split, decoded as evaluation decodes."""

    def validate(model: Captioner) -> float:
        ids = list(references)
        with interruption.at_once():
            decoded = decode_ids(model, ids, source, vocabulary, config.decoding, device)
            best = [texts[0] for texts in decoded.captions.values()]
            scored = as_scored(config.data.tokenizer, best)
            candidates = dict(zip(decoded.captions, scored, strict=True))
            return cider_d(references, candidates)[0]

    return validate


def _reward(recipe: Recipe, references: dict[str, list[str]]) -> Reward:
    """CIDEr-D against document frequencies of the run's own training captions."""
    scst = recipe.scst
    document: Document = "caption" if scst.document == "caption" else "image"
    eos = EOS_WORD if scst.eos else None
    scorer = CiderReward(references, DocumentFrequency.build(references, document, eos=eos))

    def reward(ids: Sequence[str], captions: Sequence[Sequence[str]]) -> np.ndarray:
        scored = as_scored(recipe.data.tokenizer, [" ".join(words) for words in captions])
        return scorer.reward(ids, [text.split() for text in scored])

    return reward


def is_finished(run: Path) -> bool:
    """Whether training in this folder came to its end."""
    last = checkpoint.find(run / "last")
    return last is not None and checkpoint.load_meta(last).get("stage") == "done"
