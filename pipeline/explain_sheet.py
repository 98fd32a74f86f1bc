"""Explanations drawn over the photograph: one column per word.

Of each map a panel shows the photograph at an opacity that follows the word's scores (from its
least to its greatest), with the box of the top score outlined in red.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLUMNS = 7  # words side by side
PANEL = 180  # width of a panel in pixels
GAP = 8  # between panels
LABEL = 130  # width of the row titles
LINE = 20  # height of a line of text
BARS = 48  # height of a row of bars
FAINTEST = 0.12  # opacity of the least score
RED, DARK, GREY = (214, 30, 30), (30, 30, 30), (120, 120, 120)


@dataclass(frozen=True)
class Map:
    """Scores of the image's rows for each word."""

    title: str
    scores: np.ndarray  # (T, N)


@dataclass(frozen=True)
class Bars:
    """Shares for each word, such as weights on the words before it."""

    title: str
    shares: Sequence[np.ndarray]  # per word (n,) in 0..1


@dataclass(frozen=True)
class Notes:
    """A short text for each word."""

    title: str
    texts: Sequence[str]


Row = Map | Bars | Notes


def draw(
    photo: np.ndarray, boxes: np.ndarray, words: Sequence[str], rows: Sequence[Row]
) -> Image.Image:
    """The sheet of a caption; photo (height, width, 3), boxes (N, 4) in its pixels."""
    scale = PANEL / photo.shape[1]
    size = (PANEL, max(1, round(photo.shape[0] * scale)))
    small = Image.fromarray(photo).resize(size, Image.Resampling.LANCZOS)
    heights = [_height(row, size[1]) for row in rows]
    band = LINE + sum(heights) + GAP * (len(rows) + 2)
    bands = -(-len(words) // COLUMNS)
    columns = min(COLUMNS, len(words))
    sheet = Image.new("RGB", (LABEL + columns * (PANEL + GAP) + GAP, bands * band + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for place, word in enumerate(words):
        x = LABEL + GAP + place % COLUMNS * (PANEL + GAP)
        y = GAP + place // COLUMNS * band
        pen.text((x, y), word, DARK, _font(16))
        y += LINE + GAP
        for row, height in zip(rows, heights, strict=True):
            if place % COLUMNS == 0:
                pen.multiline_text((GAP, y), row.title, GREY, _font(12))
            if isinstance(row, Map):
                sheet.paste(panel(small, boxes * scale, row.scores[place]), (x, y))
            elif isinstance(row, Bars):
                _bars(pen, x, y, row.shares[place])
            else:
                pen.text((x, y), row.texts[place], DARK, _font(12))
            y += height + GAP
    return sheet


def panel(small: Image.Image, boxes: np.ndarray, scores: np.ndarray) -> Image.Image:
    """The photograph by opacity of scores (N,) in boxes (N, 4), the top one outlined."""
    width, height = small.size
    spread = float(scores.max() - scores.min())
    level = (scores - scores.min()) / spread if spread else np.zeros_like(scores)  # (N,) in 0..1
    opacity = np.zeros((height, width))
    for (left, top, right, bottom), value in zip(boxes, level, strict=True):
        place = np.s_[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))]
        opacity[place] = np.maximum(opacity[place], value)
    opacity = FAINTEST + (1 - FAINTEST) * opacity  # (height, width)
    pixels = np.asarray(small, dtype=np.float64)  # (height, width, 3)
    faded = 255 - opacity[..., None] * (255 - pixels)
    shown = Image.fromarray(faded.round().astype(np.uint8))
    left, top, right, bottom = boxes[int(scores.argmax())]
    corners = (min(left, width - 3), min(top, height - 3), min(right, width - 1), bottom)
    low = max(min(corners[3], height - 1), corners[1])
    ImageDraw.Draw(shown).rectangle((*corners[:3], low), outline=RED, width=2)
    return shown


def png(sheet: Image.Image) -> bytes:
    """The sheet as a PNG file."""
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _height(row: Row, panel_height: int) -> int:
    if isinstance(row, Map):
        return panel_height
    return BARS if isinstance(row, Bars) else LINE


def _bars(pen: ImageDraw.ImageDraw, x: int, y: int, shares: np.ndarray) -> None:
    width = min(16, PANEL // max(1, len(shares)))
    pen.line((x, y + BARS, x + width * max(1, len(shares)), y + BARS), GREY)
    for place, share in enumerate(shares):
        left, top = x + place * width, y + BARS - round(BARS * min(1.0, float(share)))
        pen.rectangle((left + 1, top, left + width - 2, y + BARS), fill=DARK)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
