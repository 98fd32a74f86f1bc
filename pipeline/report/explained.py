"""A few captions of a report explained: why each word was said, drawn over the photograph."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from extract.cache import FeatureCache
from extract.counts import counted
from extract.errors import ExtractError
from pipeline.devices import choose_device
from pipeline.errors import PipelineError
from pipeline.explaining import explain_record, memory_note, sheet_of
from pipeline.report.pictures import Picture
from pipeline.run_folder import RunFolder

log = logging.getLogger(__name__)

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
    cache: FeatureCache,
    groups: Mapping[str, Sequence[Picture]],
    places: Mapping[str, str],
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
    many = counted(len(chosen), "caption")
    log.info("explaining %s word by word; --explained 0 leaves them out", many)
    device = choose_device("auto")
    model, vocabulary = folder.load(device)
    sheets = []
    for picture in chosen:
        record = cache.read(places[picture.image_id])
        file = Path(record.file) if images is None else images / Path(record.file).name
        buffer = io.BytesIO()
        try:
            found = explain_record(model, vocabulary, record, file, picture.caption, device, STEPS)
            sheet_of(found).save(buffer, "JPEG", quality=85)
        except (PipelineError, ExtractError) as error:
            log.warning("left unexplained: %s", error)
            continue
        url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
        note = memory_note(found)
        sheets.append(Sheet(image_id=picture.image_id, caption=picture.caption, url=url, note=note))
    return sheets
