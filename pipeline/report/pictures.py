"""The pictures of a report: which ones, and each with its captions."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from PIL import Image

from extract.cache import FeatureCache
from extract.errors import ExtractError
from extract.images import ImageLimits, ImageRules, read_image

log = logging.getLogger(__name__)

SHOWN = 8  # pictures of each kind: best, worst, and in between
THUMBNAIL = 400  # longer side in pixels
NARROWEST, WIDEST = 0.8, 1.5  # width by height of the frames


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of the report."""

    image_id: str
    caption: str
    references: Sequence[str]
    cider: float | None
    url: str | None  # the picture as a data URL; None where the file is not there any more
    shape: tuple[int, int] | None  # width and height of the thumbnail


def gather(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    cider: Mapping[str, float],
    cache: FeatureCache,
    places: Mapping[str, str],
    images: Path | None,
) -> dict[str, list[Picture]]:
    """Title -> pictures: best and worst by CIDEr-D and evenly from between.

    Without CIDEr-D a selection from all. `places` has each image's id in the cache. The photographs
    are where extraction found them, or below `images`, by file name. Those that are not found are
    counted in a warning.
    """
    groups = {}
    for title, ids in _chosen(list(captions), cider).items():
        groups[title] = [
            _picture(
                image,
                captions[image],
                references.get(image, ()),
                cider.get(image),
                _file(cache, places.get(image), images),
            )
            for image in ids
        ]
    shown = [picture for pictures in groups.values() for picture in pictures]
    missing = sum(picture.url is None for picture in shown)
    if missing:
        log.warning(
            "%d of %d pictures were not found where they were extracted: --images DIR",
            *(missing, len(shown)),
        )
    return groups


def frame(groups: Mapping[str, Sequence[Picture]]) -> float:
    """Width by height that suits most of the pictures."""
    shapes = [p.shape for pictures in groups.values() for p in pictures if p.shape is not None]
    usual = median(width / height for width, height in shapes) if shapes else 4 / 3
    return min(max(usual, NARROWEST), WIDEST)


def _chosen(ids: Sequence[str], cider: Mapping[str, float]) -> dict[str, Sequence[str]]:
    if not cider:
        return {"A selection": _spread(ids)}
    order = sorted(ids, key=lambda image: -cider.get(image, 0.0))
    chosen = {
        "Best captions": order[:SHOWN],
        "In between": _spread(order[SHOWN:-SHOWN]),
        "Worst captions": order[SHOWN:][-SHOWN:][::-1],
    }
    return {title: found for title, found in chosen.items() if found}


def _spread(ids: Sequence[str]) -> Sequence[str]:
    """`SHOWN` ids at even distances."""
    if len(ids) <= SHOWN:
        return ids
    return [ids[round((place + 0.5) * len(ids) / SHOWN - 0.5)] for place in range(SHOWN)]


def _file(cache: FeatureCache, image: str | None, images: Path | None) -> Path | None:
    if image is None:
        return None
    file = Path(cache.read(image, []).file)
    return images / file.name if images is not None else file


def _picture(
    image: str, caption: str, references: Sequence[str], cider: float | None, file: Path | None
) -> Picture:
    url, shape = (None, None) if file is None else _thumbnail(file)
    return Picture(
        image_id=image, caption=caption, references=references, cider=cider, url=url, shape=shape
    )


def _thumbnail(path: Path) -> tuple[str | None, tuple[int, int] | None]:
    try:
        pixels = read_image(path, ImageRules(), ImageLimits()).pixels
    except ExtractError:
        return None, None
    picture = Image.fromarray(pixels)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/jpeg;base64,{data}", picture.size
