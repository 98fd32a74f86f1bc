"""A folder of scenes: pictures, captions with splits, boxes, the truth, and how it was made.

images/scene_000000.jpg ...    dataset_scenes.json    boxes.json    boxes_vocab.json
scenes.json    world.json (written last: with it the folder is whole)
"""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.files import write_bytes, write_text
from pipeline.recipe import setting_differences, to_mapping
from pipeline.scenes.captions import write_captions
from pipeline.scenes.detections import ATTRIBUTES, CLASSES, detect
from pipeline.scenes.draw import draw
from pipeline.scenes.grammar import words_of
from pipeline.scenes.scene import Scene, draw_scene, generator
from pipeline.scenes.world import World

GENERATOR = 1  # raised whenever the same settings give other files
SPLITS = ("train", "val", "test")
DEFAULT_SHARES = (0.8, 0.1, 0.1)
IMAGES, DATASET, BOXES, VOCAB, SCENES, WORLD = (
    *("images", "dataset_scenes.json", "boxes.json", "boxes_vocab.json"),
    *("scenes.json", "world.json"),
)
_MOST = 1_000_000
_SIDES = (64, 2048)
_QUALITY = 92
_THREADS = 2


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What lies in a folder of scenes; `made` tells whether this call wrote it."""

    out: str
    made: bool
    images: int
    captions: int
    boxes: int
    splits: dict[str, int]
    words: int  # different words in the captions

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def write_scenes(
    out: Path,
    images: int,
    seed: int,
    size: int,
    world: World,
    splits: Sequence[float] = DEFAULT_SHARES,
    on_done: Callable[[int], None] | None = None,
) -> Summary:
    """Write `images` scenes of `size` x `size` pixels into `out`; nothing if they are there.

    `splits` are the shares of train, val and test, or how many images each has; `on_done` hears
    of every finished image.
    Raises PipelineError for values out of range, and when the folder holds scenes of other
    settings, naming the differences.
    """
    shares = _checked(images, seed, size, splits)
    settings = {
        "generator": GENERATOR,
        "images": images,
        "seed": seed,
        "size": size,
        "splits": list(shares),
        "world": to_mapping(world),
    }
    known = _known(out)
    if known is not None:
        _same(out, known, settings)
        if _whole(out, images):
            return Summary(out=str(out), made=False, **known["summary"])
    _clear(out / IMAGES, {f"{_name(index)}.jpg" for index in range(images)})
    rows, truth, boxes = [], [], {}
    with ThreadPoolExecutor(_THREADS) as pool:
        one = partial(_image, out, seed, size, world)
        try:
            for row, scene, found in pool.map(
                one, *zip(*enumerate(assign_splits(images, shares)), strict=True)
            ):
                rows.append(row)
                truth.append(scene.to_dict())
                boxes[scene.id] = found
                if on_done is not None:
                    on_done(1)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _write_json(out / DATASET, {"images": rows, "dataset": "scenes"})
    _write_json(out / SCENES, truth)
    _write_json(out / BOXES, boxes)
    _write_json(out / VOCAB, {"classes": CLASSES, "attributes": ATTRIBUTES})
    summary = _summary(rows, boxes)
    write_text(out / WORLD, json.dumps({**settings, "summary": summary}, indent=1) + "\n")
    return Summary(out=str(out), made=True, **summary)


def read_scenes(path: Path) -> dict[str, Scene]:
    """The scenes of a `scenes.json`, by image id. Raises PipelineError."""
    content = _read_json(path)
    if not isinstance(content, list):
        raise PipelineError(f"{path}: holds no list, wanted what `pipeline scenes` wrote")
    scenes = [Scene.from_dict(row) for row in content]
    return {scene.id: scene for scene in scenes}


def assign_splits(images: int, shares: Sequence[float]) -> list[str]:
    """The split of each image: always that which is furthest behind its share.

    An image's split does not depend on how many follow.
    """
    counts = [0] * len(SPLITS)
    result = []
    for index in range(images):
        behind = [share * (index + 1) - n for share, n in zip(shares, counts, strict=True)]
        chosen = max(range(len(SPLITS)), key=lambda k: (round(behind[k], 9), -k))
        counts[chosen] += 1
        result.append(SPLITS[chosen])
    return result


def _checked(images: int, seed: int, size: int, splits: Sequence[float]) -> tuple[float, ...]:
    if not 1 <= images <= _MOST:
        raise PipelineError(f"images is {images}, wanted 1 to {_MOST}")
    if seed < 0:
        raise PipelineError(f"seed is {seed}, wanted 0 or more")
    if not _SIDES[0] <= size <= _SIDES[1]:
        raise PipelineError(f"size is {size}, wanted {_SIDES[0]} to {_SIDES[1]} pixels")
    shares = tuple(float(share) for share in splits)
    if len(shares) != len(SPLITS) or not all(0 <= share < math.inf for share in shares):
        raise PipelineError(f"splits is {shares}, wanted three shares: train, val, test")
    if sum(shares) == images and all(share.is_integer() for share in shares):
        return tuple(share / images for share in shares)
    if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
        raise PipelineError(
            f"splits is {shares} with the sum {sum(shares):g}, wanted shares with the sum 1 or"
            f" counts with the sum of the images, {images}"
        )
    return shares


def _known(out: Path) -> dict[str, Any] | None:
    """What `world.json` says of the folder; None where there is none."""
    if not (out / WORLD).exists():
        return None
    known = _read_json(out / WORLD)
    if not isinstance(known, dict) or not isinstance(known.get("summary"), dict):
        raise PipelineError(
            f"{out / WORLD}: was not written by `pipeline scenes`; give another folder with --out"
        )
    return known


def _same(out: Path, known: dict[str, Any], settings: dict[str, Any]) -> None:
    found = {key: value for key, value in known.items() if key != "summary"}
    lines = setting_differences(found, settings)
    if lines:
        raise PipelineError(
            f"{out} holds scenes of other settings (there / asked for):\n  "
            + "\n  ".join(lines)
            + "\ngive another folder with --out, or remove this one"
        )


def _whole(out: Path, images: int) -> bool:
    files = [out / name for name in (DATASET, BOXES, VOCAB, SCENES)]
    files += [out / IMAGES / f"{_name(index)}.jpg" for index in range(images)]
    return all(file.is_file() for file in files)


def _clear(folder: Path, wanted: set[str]) -> None:
    """Remove what an interrupted larger call left; refuse a folder with other files."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise PipelineError(f"{folder} is no folder; give another one with --out")
    for file in sorted(folder.iterdir()):
        if file.name in wanted:
            continue
        if not re.fullmatch(r"scene_\d+\.jpg|\.scene_\d+\.jpg\.\d+\.tmp", file.name):
            raise PipelineError(
                f"{folder} holds {file.name}, which is no scene; give another folder with --out"
            )
        file.unlink()


def _image(
    out: Path, seed: int, size: int, world: World, index: int, split: str
) -> tuple[dict[str, Any], Scene, dict[str, Any]]:
    """Write one picture; its row of the captions, its truth, its boxes."""
    scene = draw_scene(seed, index, world)
    buffer = io.BytesIO()
    picture = draw(scene, generator(seed, index, "look"), size)
    picture.save(buffer, format="JPEG", quality=_QUALITY, subsampling=0)
    write_bytes(out / IMAGES / f"{scene.id}.jpg", buffer.getvalue())
    unspoken = world.held_out if split == "train" else ()
    texts = write_captions(scene, generator(seed, index, "captions"), world, unspoken)
    found = detect(scene, generator(seed, index, "detections"), world, size)
    return _row(scene, index, split, texts), scene, found


def _name(index: int) -> str:
    return f"scene_{index:06d}"


def _row(scene: Scene, index: int, split: str, texts: Sequence[str]) -> dict[str, Any]:
    """An image of the Karpathy form."""
    first = index * len(texts)
    sentences = [
        {"raw": text, "tokens": words_of(text), "imgid": index, "sentid": first + number}
        for number, text in enumerate(texts)
    ]
    return {
        "filename": f"{scene.id}.jpg",
        "imgid": index,
        "split": split,
        "sentids": [sentence["sentid"] for sentence in sentences],
        "sentences": sentences,
    }


def _summary(rows: Sequence[dict[str, Any]], boxes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    sentences = [sentence for row in rows for sentence in row["sentences"]]
    counts = Counter(row["split"] for row in rows)
    return {
        "images": len(rows),
        "captions": len(sentences),
        "boxes": sum(len(found["boxes"]) for found in boxes.values()),
        "splits": {split: counts[split] for split in SPLITS},
        "words": len({word for sentence in sentences for word in sentence["tokens"]}),
    }


def _write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, separators=(",", ":")) + "\n")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read as JSON ({error})") from error
