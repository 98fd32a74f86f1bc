"""One image of a run explained: its caption, where the captioner looked, what the image added."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from caption.batches import FeatureSource
from caption.captioner import Captioner
from caption.config import DecodingConfig
from caption.data import read_captions
from caption.explain import Attributions, Looks, integrated_gradients, look
from caption.features import collate
from caption.spacy_tokenizer import spacy_tokenize
from caption.transformer import Transformer
from caption.vocabulary import EOS, UNK, Caption, Vocabulary, words_of
from evaluate.tokenizer import ptb_tokenize
from extract.cache import ImageFeatures
from extract.counts import counted
from extract.images import ImageLimits, ImageRules, read_image
from extract.run import extract_in_memory
from extract.sources import find_sources
from pipeline.decoding import decode_ids
from pipeline.devices import choose_device
from pipeline.errors import PipelineError, WrongUsage
from pipeline.explain_sheet import Bars, Map, Notes, Row, draw
from pipeline.own_photos import InMemory, extractor_of
from pipeline.progress import Progress
from pipeline.results import canonical_id, ids_by_spelling, places_in
from pipeline.run_folder import RunFolder, is_run, open_run

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A caption of an image and the reasons for its words."""

    image_id: str
    file: Path
    size: tuple[int, int]  # width and height of the photograph in pixels
    boxes: np.ndarray  # (N, 4) of the rows in pixels
    stream: str  # which rows they are
    words: tuple[str, ...]  # T
    attributions: Attributions
    looks: Looks | None  # None for captioners without attention

    @property
    def scores(self) -> np.ndarray:
        """(T, N) attributions in nats."""
        scores: np.ndarray = self.attributions.scores[self.stream].cpu().numpy()
        return scores


def open_image(
    folder: RunFolder,
    needs: tuple[str, ...],
    image: str,
    *,
    features: Path | None,
    images: Path | None,
    boxes: Path | None,
    device: str,
    weights: Path | None = None,
) -> tuple[ImageFeatures, Path]:
    """Features and file of an image, given by its id in a cache or as a file.

    A file is extracted to the streams `needs` as the run's features were, unless `features` is a
    cache to find it in; ids are those of the run's captions and results and are looked for there,
    by default in the run's features. Raises
    WrongUsage when the image is neither.
    """
    path = Path(image)
    if path.is_dir():
        what = "a run folder (one run is explained at a time)" if is_run(path) else "a folder"
        raise WrongUsage(
            f"{path} is {what}, wanted one photograph or image id: pipeline explain PHOTO"
            f" --run {shlex.quote(str(folder.path))}"
        )
    sources = find_sources([path]) if path.is_file() else []
    if sources and features is None:
        extractor = extractor_of(folder, needs, boxes, device, weights)
        records, failures = extract_in_memory(sources, extractor)
        if failures:
            raise PipelineError(f"{path}: {failures[0].reason}: {failures[0].detail}")
        return records[0], path
    cache = folder.cache(features)
    ids = ids_by_spelling(cache.ids)
    if not sources and folder.captions is not None and folder.captions.is_file():
        ids = places_in(cache, read_captions(folder.captions).images)
    asked = sources[0].image_id if sources else image
    wanted = asked if asked in ids else canonical_id(asked)
    if wanted not in ids:
        raise WrongUsage(
            f"{image!r} is no file, and {cache.path} has no image of just that id (it has"
            f" {len(cache.ids)}, such as {', '.join(cache.ids[:3])})"
            if not sources
            else f"{cache.path} has no image {wanted!r}; leave --features out to extract {path}"
        )
    record = cache.read(ids[wanted])
    if sources:
        return record, path
    file = Path(record.file)
    return record, images / file.name if images is not None else file


def explain_image(
    run: Path,
    image: str,
    *,
    caption: str | None = None,
    features: Path | None = None,
    images: Path | None = None,
    boxes: Path | None = None,
    weights: Path | None = None,
    steps: int = 50,
    device: str = "auto",
) -> Explained:
    """Explain a caption of an image, by default the one that the run's captioner decodes.

    `images` is a folder to find photographs of ids in, by file name; `boxes` gives the regions of
    a file for runs on given boxes, `weights` the checkpoint of the run's detector.
    """
    folder = open_run(run)
    if caption is not None and not caption.strip():
        raise WrongUsage("--caption is empty: give the words to explain, or leave it out")
    where = choose_device(device)
    model, vocabulary = folder.load(where)
    record, file = open_image(
        folder,
        model.needs,
        image,
        features=features,
        images=images,
        boxes=boxes,
        device=str(where),
        weights=weights,
    )
    words: Caption
    if caption is None:
        words = decoded(model, vocabulary, record, folder.recipe.decoding, where)
    else:
        words = given(caption, vocabulary, folder.recipe.data.tokenizer)
    return explain_record(model, vocabulary, record, file, words, where, steps)


def explain_record(
    model: Captioner,
    vocabulary: Vocabulary,
    record: ImageFeatures,
    file: Path,
    caption: Caption,
    device: torch.device,
    steps: int = 50,
) -> Explained:
    """Explain the words of a caption of an image with these features."""
    ids = [token for token in vocabulary.encode(caption) if token != EOS]  # BOS and the words
    if len(ids) < 2:
        raise PipelineError(
            f"{record.image_id}: the run's caption is empty; give the words to explain:"
            " --caption TEXT"
            if not caption
            else f"{record.image_id}: the caption {caption!r} has no words to explain"
        )
    features = collate([record], model.needs).to(device)
    tokens = torch.tensor(ids, device=device)  # (T + 1,)
    label = f"explain {record.image_id}, {counted(len(ids) - 1, 'word')}"
    with Progress(None, unit="gradients", label=label) as progress:
        attributions = integrated_gradients(
            model, features, tokens, steps, most=8 * steps, on_done=progress.update
        )
    words = tuple(vocabulary.words[token] for token in ids[1:])
    _warn_incomplete(words, attributions)
    return Explained(
        image_id=record.image_id,
        file=file,
        size=(record.width, record.height),
        boxes=_boxes(record, model.needs[0]),
        stream=model.needs[0],
        words=words,
        attributions=attributions,
        looks=look(model, features, tokens) if isinstance(model, Transformer) else None,
    )


def decoded(
    model: Captioner,
    vocabulary: Vocabulary,
    record: ImageFeatures,
    settings: DecodingConfig,
    device: torch.device,
) -> str:
    """The caption of an image as evaluation decodes it."""
    cache: Any = InMemory([record])
    source = FeatureSource(cache, model.needs)
    found = decode_ids(model, [record.image_id], source, vocabulary, settings, device)
    return found.captions[record.image_id][0]


def given(caption: str, vocabulary: Vocabulary, tokenizer: str) -> Caption:
    """A caption as the run's words; those that the run does not know are named in a warning."""
    words: Caption
    if tokenizer == "m2":
        words = next(spacy_tokenize([caption]))
    else:
        words = ptb_tokenize([caption])[0] if tokenizer == "ptb" else " ".join(caption.split())
    unknown = [word for word in words_of(words) if vocabulary.ids.get(word, UNK) == UNK]
    if unknown:
        log.warning("not among the run's words, read as <unk>: %s", ", ".join(unknown))
    return words


def _warn_incomplete(words: tuple[str, ...], attributions: Attributions) -> None:
    complete = attributions.complete.tolist()
    wrong = [word for word, there in zip(words, complete, strict=True) if not there]
    if wrong:
        log.warning(
            "after %d steps the attributions of %d of %d words (%s) still do not add up to what the"
            " image gains the word (off by at most %.2f nats): take them as rough, or give pipeline"
            " explain more --steps",
            *(attributions.steps, len(wrong), len(words), ", ".join(dict.fromkeys(wrong))),
            float(attributions.error.max()),
        )


def _boxes(record: ImageFeatures, stream: str) -> np.ndarray:
    if stream not in record.boxes:
        raise PipelineError(
            f"{record.image_id}: its {stream} have no boxes, so nothing can be drawn over the"
            " photograph; extract again with a preset of this version"
        )
    return record.boxes[stream]


def rows_of(explained: Explained, every: bool = False) -> list[Row]:
    """The rows of an image's sheet; with `every`, a map of each layer, level and head."""
    told = explained.attributions
    gained = [
        f"{gain:+.2f} nats" + ("" if complete else ", roughly")
        for gain, complete in zip(told.gained.tolist(), told.complete.tolist(), strict=True)
    ]
    rows: list[Row] = [Map("attribution", explained.scores), Notes("the image adds", gained)]
    looks = explained.looks
    if looks is None:
        return rows
    count = len(explained.boxes)
    if every:
        for layer, levels in enumerate(looks.attention, start=1):
            for level, heads in enumerate(levels, start=1):
                for head, weights in enumerate(heads, start=1):
                    title = f"layer {layer}\nhead {head}"
                    title += f"\nlevel {level}" if len(levels) > 1 else ""
                    rows.append(Map(title, _cut(weights, count)))
    else:
        rows.append(Map("attention\nmean of all", _cut(looks.rows(), count)))
    if looks.history is not None:
        top = looks.history[-1].mean(dim=(0, 1)).cpu().numpy()  # (T, T)
        shares = [top[t, : t + 1] for t in range(len(top))]
        rows.append(Bars("weight on each\nearlier context\n(top layer)", shares))
        rows.append(Notes("all history", [f"{100 * share.sum():.1f} %" for share in shares]))
    if looks.gates is not None:
        gates = looks.gates.mean(dim=0).T.tolist()  # T x E
        rows.append(Notes("gate per level", [" ".join(f"{g:.2f}" for g in word) for word in gates]))
    return rows


def memory_note(explained: Explained) -> str | None:
    """What the encoder read of its memory slots, for captioners that have some."""
    if explained.looks is None or explained.looks.memory is None:
        return None
    masses = " ".join(f"{100 * mass:.1f} %" for mass in explained.looks.memory.mean(dim=1).tolist())
    return f"weight on the memory slots, by encoder layer: {masses}"


def _cut(weights: Tensor, count: int) -> np.ndarray:
    """(T, N) of as many rows as the photograph has boxes; a captioner may pad or cut its rows."""
    shown = weights[:, :count].cpu().numpy()
    missing = count - shown.shape[1]
    return np.pad(shown, ((0, 0), (0, missing))) if missing else shown


def sheet_of(explained: Explained, every: bool = False) -> Image.Image:
    """The explanation drawn over the photograph.

    Raises ExtractError when the photograph is not there any more, PipelineError when it has
    another size than its features' record.
    """
    photo = read_image(explained.file, ImageRules(), ImageLimits()).pixels  # (height, width, 3)
    if photo.shape[:2] != explained.size[::-1]:
        raise PipelineError(
            f"{explained.file} has {photo.shape[1]} x {photo.shape[0]} pixels, but the features of"
            f" {explained.image_id} were made from {explained.size[0]} x {explained.size[1]}"
        )
    rows = rows_of(explained, every)
    return draw(photo, explained.boxes, explained.words, rows)


def numbers(explained: Explained) -> dict[str, Any]:
    """All of an explanation, for JSON."""
    looks, attributions = explained.looks, explained.attributions
    words: list[dict[str, Any]] = [
        {
            "word": word,
            "gained": float(attributions.gained[t]),
            "complete": bool(attributions.complete[t]),
            "attribution": {s: v[t].tolist() for s, v in attributions.scores.items()},
        }
        for t, word in enumerate(explained.words)
    ]
    found: dict[str, Any] = {
        "image_id": explained.image_id,
        "caption": " ".join(explained.words),
        "boxes": explained.boxes.tolist(),
        "words": words,
    }
    if looks is None:
        return found
    for t, word in enumerate(words):
        word["log_probability"] = float(looks.log_probs[t])
        word["attention"] = looks.attention[:, :, :, t].tolist()  # layers, levels, heads, rows
        if looks.history is not None:
            word["history"] = looks.history[:, :, :, t, : t + 1].tolist()
        if looks.gates is not None:
            word["gates"] = looks.gates[:, :, t].tolist()  # layers, levels
    if looks.memory is not None:
        found["memory"] = looks.memory.tolist()  # encoder layers, heads
    return found
