"""A few captions of a report explained: why each word was said, drawn over the photograph."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pipeline.explaining import explain_record, memory_note, sheet_of
from pipeline.report.pictures import Picture
from pipeline.results import canonical_id
from pipeline.run_folder import RunFolder, choose_device

STEPS = 20  # of the attributions' path to begin with


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One explained caption."""

    image_id: str
    caption: str
    url: str  # the picture as a data URL
    note: str | None  # what concerns the whole image


def explained(
    folder: RunFolder,
    groups: Mapping[str, Sequence[Picture]],
    images: Path | None,
    count: int,
) -> list[Sheet]:
    """The first `count` captions, by turns from each group, whose photograph is there.

    The photographs are where extraction found them, or below `images`, by file name.
    """
    turns = [picture for turn in zip_longest(*groups.values()) for picture in turn if picture]
    chosen = [picture for picture in turns if picture.url and picture.caption][:count]
    if not chosen:
        return []
    device = choose_device("auto")
    model, vocabulary = folder.load(device)
    cache = folder.cache()
    ids = {canonical_id(known): known for known in cache.ids}
    sheets = []
    for picture in chosen:
        record = cache.read(ids[picture.image_id])
        file = Path(record.file) if images is None else images / Path(record.file).name
        found = explain_record(model, vocabulary, record, file, picture.caption, device, STEPS)
        buffer = io.BytesIO()
        sheet_of(found).save(buffer, "JPEG", quality=85)
        url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
        note = memory_note(found)
        sheets.append(Sheet(image_id=picture.image_id, caption=picture.caption, url=url, note=note))
    return sheets
