"""What a cache knows of an image, drawn over the image.

Legend: N rows of the image, h w cells down and across.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from extract.records import ImageFeatures
from pipeline.errors import PipelineError

_GOLDEN = 0.618033988749895  # steps of the hue by which neighbours differ most
_OPACITY = 0.6  # of a heat map over the photograph


def draw_boxes(
    image: Image.Image,
    record: ImageFeatures,
    stream: str,
    names: Mapping[str, Sequence[str]],
    most: int = 40,
) -> Image.Image:
    """The stream's boxes with attribute, class and score, the best `most` of them.

    `names` are the vocabularies of `objects` and `attributes`; without them numbers are drawn.
    Boxes are scaled where the cache's image has another size than this one.
    """
    boxes, extras = record.boxes[stream], record.extras.get(stream, {})
    width, height = record.width or image.width, record.height or image.height
    scale = np.array([image.width / width, image.height / height] * 2)  # (4,)
    order = np.arange(len(boxes))
    if "scores" in extras:
        order = np.argsort(-extras["scores"], kind="stable")
    picture = image.convert("RGB")
    pen = ImageDraw.Draw(picture)
    size = max(12, min(image.size) // 40)
    font, line = ImageFont.load_default(size), max(2, min(image.size) // 250)
    for place in order[:most][::-1]:  # the best on top
        x1, y1, x2, y2 = (boxes[place] * scale).tolist()
        colour = _colour(int(place))
        pen.rectangle((x1, y1, x2, y2), outline=colour, width=line)
        if text := label(extras, int(place), names):
            left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
            x = max(0, min(x1, image.width - (right - left) - 4))
            y = max(0, min(y1, image.height - bottom - 4))
            pen.rectangle((x, y, x + right - left + 4, y + bottom + 4), fill=colour)
            pen.text((x + 2 - left, y + 2), text, fill=(0, 0, 0), font=font)
    return picture


def label(extras: Mapping[str, np.ndarray], place: int, names: Mapping[str, Sequence[str]]) -> str:
    """What is known of a row: `red bus 0.93`; of names with synonyms the first."""
    words = []
    for key in ("attributes", "objects"):
        if key in extras:
            number, known = int(extras[key][place]), names.get(key, ())
            fits = 0 <= number < len(known)
            words.append(known[number].split(",")[0] if fits else f"{key[:-1]} {number}")
    if "scores" in extras:
        words.append(f"{float(extras['scores'][place]):.2f}")
    return " ".join(words)


def draw_heat(image: Image.Image, record: ImageFeatures, stream: str) -> Image.Image:
    """The norm of each cell's features as colours from dark to bright over the image."""
    high, wide = record.grid_shape[stream]
    norms = np.linalg.norm(record.streams[stream].astype(np.float64), axis=1)  # (h w,)
    low, top = norms.min(), norms.max()
    shares = (norms - low) / (top - low) if top > low else np.zeros_like(norms)
    cells = Image.fromarray(np.rint(shares * 255).astype(np.uint8).reshape(high, wide))
    smooth = cells.resize(image.size, Image.Resampling.NEAREST)
    heat = Image.merge("RGB", [smooth.point(list(column)) for column in zip(*_HEAT, strict=True)])
    return Image.blend(image.convert("RGB"), heat, _OPACITY)


def picture_of(
    image: Image.Image,
    record: ImageFeatures,
    stream: str,
    names: Mapping[str, Sequence[str]],
    most: int = 40,
) -> Image.Image:
    """Boxes where the stream's rows are regions, a heat map where they are a grid.

    Raises PipelineError when the cache knows of no place for the rows.
    """
    if stream in record.grid_shape:
        return draw_heat(image, record, stream)
    if stream in record.boxes:
        return draw_boxes(image, record, stream, names, most)
    raise PipelineError(
        f"stream {stream!r} of image {record.image_id!r} has neither boxes nor a grid's shape: its"
        " rows have no place in the image"
    )


def _colour(place: int) -> tuple[int, int, int]:
    """A bright colour unlike that of the places beside it."""
    red, green, blue = colorsys.hsv_to_rgb(place * _GOLDEN % 1, 0.6, 1.0)
    return int(red * 255), int(green * 255), int(blue * 255)


def _heat_table() -> list[tuple[int, int, int]]:
    """256 colours from black over red and yellow to white."""
    steps = np.linspace(0, 3, 256)[:, None] - np.arange(3)  # (256, 3)
    values = np.rint(np.clip(steps, 0, 1) * 255).astype(int)
    return [(int(r), int(g), int(b)) for r, g, b in values]


_HEAT = _heat_table()
