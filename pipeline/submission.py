"""Files for the COCO captioning server: names, ids and counts checked before anything is written.

The server takes one zip that holds `captions_val2014_NAME_results.json` and
`captions_test2014_NAME_results.json`: every image of the split once, integer ids.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from extract.counts import counted
from pipeline.entries import read_json
from pipeline.errors import PipelineError
from pipeline.files import write_bytes
from pipeline.results import Results, canonical_id, named, write_results

IMAGES = {"val2014": 40504, "test2014": 40775}  # images of the split, as COCO publishes them
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What was written: the results file, the zip and the splits that the zip holds."""

    results: Path
    archive: Path
    splits: tuple[str, ...]


def write_submission(
    results: Results, name: str, split: str, folder: Path, ids: Collection[str] | None = None
) -> Submission:
    """Write `captions_SPLIT_NAME_results.json` and `NAME_results.zip` in `folder`.

    The zip holds the file of the other split too if it stands there. `ids` are the canonical ids
    that must all be captioned; without them the number of images is checked. Raises PipelineError
    on a name or split the server does not know, ids that are no integers, and wrong images.
    """
    if split not in IMAGES:
        raise PipelineError(f"--submission-split is {split!r}, wanted {' or '.join(IMAGES)}")
    if not _NAME.fullmatch(name):
        raise PipelineError(
            f"--submission is {name!r}, wanted letters, digits, '-' and '.' (the server reads '_'"
            " as the end of the name)"
        )
    captions = _checked(results, split, ids)
    path, archive = outputs(name, split, folder)
    write_results(path, captions)
    files = {s: _file(folder, s, name) for s in IMAGES}
    packed = {s: file for s, file in files.items() if file.exists()}
    write_bytes(archive, _zip(list(packed.values())))
    return Submission(results=path, archive=archive, splits=tuple(packed))


def outputs(name: str, split: str, folder: Path) -> tuple[Path, Path]:
    """The results file and the zip that `write_submission` writes."""
    return _file(folder, split, name), folder / f"{name}_results.zip"


def read_ids(path: Path) -> set[str]:
    """Canonical ids of a list of ids, or of the `images` of a COCO `image_info_*.json`."""
    content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else content
    images = images if isinstance(images, list) else []
    found = [i.get("id") if isinstance(i, dict) else i for i in images]
    ids = {canonical_id(i) for i in found if isinstance(i, int | str) and not isinstance(i, bool)}
    if ids and len(ids) == len(found):
        return ids
    raise PipelineError(f"{path}: no image ids, wanted a list of ids or COCO's image_info JSON")


def _file(folder: Path, split: str, name: str) -> Path:
    return folder / f"captions_{split}_{name}_results.json"


def _checked(results: Results, split: str, ids: Collection[str] | None) -> dict[int | str, str]:
    strange = [
        given for image, given in results.given.items() if not re.fullmatch(r"[0-9]+", image)
    ]
    if strange:
        raise PipelineError(
            f"{results.path}: the server wants integer ids, found {named(strange)};"
            " give results with COCO's image ids or file names"
        )
    if ids is not None:
        missing = [i for i in ids if i not in results.captions]
        extra = [i for i in results.captions if i not in ids]
        for problem, images in (("has no caption for", missing), ("captions also", extra)):
            if images:
                raise PipelineError(
                    f"{results.path}: {problem} {named(images)}; the server wants exactly the"
                    f" {counted(len(ids), 'image')} of {split}"
                )
    elif len(results.captions) != IMAGES[split]:
        raise PipelineError(
            f"{results.path}: {counted(len(results.captions), 'image')}, wanted the"
            f" {IMAGES[split]:,} of {split}; caption the whole split, or give its ids by"
            " --submission-ids FILE"
        )
    return {int(image): caption for image, caption in results.captions.items()}


def _zip(files: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.name)
    return buffer.getvalue()
