"""A contact sheet: the first pictures of a folder of scenes side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from pipeline.files import write_bytes

_GAP = 6
_PAPER = (255, 255, 255)
_COLOURS = 160  # of the sheet's palette, so that it stays small


def write_sheet(path: Path, pictures: Sequence[Path], columns: int = 6, side: int = 150) -> None:
    """Write a PNG of the pictures in rows of `columns`, each `side` pixels wide and high."""
    rows = -(-len(pictures) // columns)
    width, height = (count * (side + _GAP) - _GAP for count in (min(columns, len(pictures)), rows))
    sheet = Image.new("RGB", (width, height), _PAPER)
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        with Image.open(picture) as image:
            small = image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
        sheet.paste(small, (column * (side + _GAP), row * (side + _GAP)))
    buffer = io.BytesIO()
    sheet.quantize(_COLOURS, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
    write_bytes(path, buffer.getvalue())
