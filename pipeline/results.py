"""Results files: captions that any captioner wrote, read, checked, matched and written.

For the forms that are read see `pipeline.entries`; written is COCO result JSON.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caption.data import TRAIN_SPLITS, CaptionData, CaptionedImage, names_in, read_captions
from extract.cache import FeatureCache
from extract.counts import counted
from pipeline.entries import WANTED, data_set, entries, shown
from pipeline.errors import PipelineError
from pipeline.files import write_text

log = logging.getLogger(__name__)

LONGEST = 10_000  # characters of one caption
NAMED = 10  # ids spelled out in a message; the rest are counted
_IMAGE_FILE = re.compile(
    r"(?:.*[/\\])?(?P<stem>.+?)(?:\.(?:jpe?g|png|gif|bmp|webp|tiff?|heic|heif|avif|ppm))+",
    re.IGNORECASE | re.DOTALL,
)
_COCO_NAME = re.compile(r"COCO_[a-z]+\d{4}_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Results:
    """The captions of one results file, one per image."""

    path: Path
    captions: dict[str, str]  # canonical id -> raw caption, in the file's order
    given: dict[str, int | str]  # canonical id -> the id as the file has it


def canonical_id(image: int | str) -> str:
    """One spelling per image: `37209`, `"37209"`, `COCO_val2014_000000037209.jpg` -> "37209".

    A file name loses its folder and suffix, a number its leading zeros, accented letters become
    composed ones; other ids stay.
    """
    if isinstance(image, int):
        return str(image)
    image = unicodedata.normalize("NFC", image)
    file = _IMAGE_FILE.fullmatch(image.strip())
    name = file["stem"].strip() if file else image.strip()
    match = _COCO_NAME.fullmatch(name)
    digits = match[1] if match else name
    return str(int(digits)) if digits.isascii() and digits.isdigit() else name


def ids_by_spelling(ids: Iterable[str]) -> dict[str, str]:
    """Canonical id -> the id as a cache has it; every id also stands for itself.

    Canonical ids that several share (`a/x.jpg` and `b/x.jpg` are both `x`) name none of them.
    """
    known = list(ids)
    spellings: dict[str, list[str]] = {}
    for image in known:
        spellings.setdefault(canonical_id(image), []).append(image)
    unique = {name: images[0] for name, images in spellings.items() if len(images) == 1}
    return unique | {image: image for image in known}


def places_in(cache: FeatureCache, images: Iterable[CaptionedImage]) -> dict[str, str]:
    """Canonical image id -> id in the cache; `images` are those of the captions' file."""
    names = {canonical_id(image): name for image, name in names_in(cache, images).items()}
    found = {**ids_by_spelling(cache.ids), **names}
    return {image: place for image, place in found.items() if place in cache}


def read_results(
    path: Path | str,
    *,
    allow_empty: bool = False,
    references: Mapping[str, Sequence[str]] | None = None,
) -> Results:
    """Read and check a results file; `references` tell whether it and theirs may be swapped.

    Raises PipelineError naming the file, the place, what was found and what was wanted: for a file
    that cannot be read, captions that are no text, empty (unless `allow_empty`, which scores
    them) or longer than `LONGEST` characters, and for images with more than one caption.
    """
    path = Path(path)
    captions: dict[str, str] = {}
    given: dict[str, int | str] = {}
    doubled: dict[str, None] = {}
    broken: list[str] = []
    for entry in entries(path, None):
        problem = caption_problem(entry.caption, allow_empty=allow_empty)
        if problem is not None:
            broken.append(f"{entry.position} (image {entry.image!r}): {problem}")
            continue
        image = canonical_id(entry.image)
        if image in captions:
            doubled[image] = None
        else:
            captions[image], given[image] = entry.caption, entry.image
    if broken:
        more = f" (and {len(broken) - 1} more like it)" if len(broken) > 1 else ""
        raise PipelineError(f"{path}: {broken[0]}{more}")
    if doubled:
        single = references is not None and all(len(texts) == 1 for texts in references.values())
        raise PipelineError(
            f"{path}: {named(doubled)} with more than one caption, wanted one per image;"
            + (
                " the references have one each: are --results and --references swapped?"
                if single and len(doubled) == len(captions)
                else " keep the caption to be scored and run the command again"
            )
        )
    if not captions:
        raise PipelineError(f"{path}: no captions; {WANTED}")
    return Results(path=path, captions=captions, given=given)


def read_references(path: Path | str, *, split: str | None = None) -> dict[str, list[str]]:
    """Canonical id -> raw reference captions, from any of the files that hold them.

    Karpathy and COCO captions JSON, CSV and TSV, or a dict `{"id": ["caption", ...]}`. Raises
    PipelineError or CaptionError naming the file and place of what is wrong.
    """
    path = Path(path)
    references: dict[str, list[str]] = {}
    for entry in entries(path, split):
        problem = caption_problem(entry.caption, allow_empty=True)
        if problem is not None:
            raise PipelineError(f"{path}: {entry.position} (image {entry.image!r}): {problem}")
        references.setdefault(canonical_id(entry.image), []).append(entry.caption)
    if not references:
        raise PipelineError(
            f"{path}: no reference captions; wanted COCO captions or Karpathy"
            ' JSON, CSV or TSV with image,caption or {"id": ["caption", ...]}'
        )
    return references


def training_captions(path: Path | str) -> set[str]:
    """The raw training captions of a data set; all its captions where it has no splits."""
    images = read_captions(path).images
    splits = (None, *TRAIN_SPLITS)
    return {caption for image in images if image.split in splits for caption in image.captions}


def caption_problem(caption: Any, *, allow_empty: bool) -> str | None:
    """What is wrong with a caption and what was wanted, or None."""
    if not isinstance(caption, str):
        return f"caption is {shown(caption)}, wanted a string"
    if not caption.strip() and not allow_empty:
        return "caption is empty, wanted text (to score empty captions as 0: --allow-empty)"
    if len(caption) > LONGEST:
        return (
            f"caption has {len(caption):,} characters ({shown(caption)}), wanted at most"
            f" {LONGEST:,}: one caption, not a document"
        )
    try:
        caption.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(caption[error.start])
        return f"caption has half a character (U+{code:04X}) at {error.start}, wanted Unicode text"
    return None


def as_given(image: str) -> int | str:
    """The id as results files have it: a plain whole number as a number, others as they are."""
    return int(image) if image.isascii() and image.isdigit() and str(int(image)) == image else image


def write_results(path: Path, captions: Mapping[int | str, str]) -> None:
    """Write COCO result JSON atomically, one image per line, ids as they are given."""
    lines = ",\n".join(
        json.dumps({"image_id": image, "caption": caption}, ensure_ascii=False)
        for image, caption in captions.items()
    )
    write_text(path, f"[{lines}]\n")


def shared_images(
    references: Mapping[str, Any],
    results: Sequence[Results],
    *,
    source: Path,
    subset: bool,
    typed: Sequence[str] = (),
) -> list[str]:
    """The ids to score, in the order of the references.

    Every results file must hold exactly the images of `references`; with `subset` the images that
    all hold are taken. Raises PipelineError naming the images that are missing or unknown, with
    the --split they are all in, or the command for the shared ones, which repeats the `typed`
    options.
    """
    if subset:
        shared = [i for i in references if all(i in r.captions for r in results)]
        if not shared:
            raise PipelineError(_nothing_shared(references, results, source, typed))
        if len(shared) < len(references):
            log.info("scoring %d of the %d images of %s", len(shared), len(references), source)
        return shared
    unmatched = []
    for result in results:
        missing = [i for i in references if i not in result.captions]
        extra = [i for i in result.captions if i not in references]
        if len(missing) == len(references):
            raise PipelineError(_nothing_shared(references, [result], source, typed))
        if missing or extra:
            unmatched.append((result, missing, extra))
    if unmatched:
        data = data_set(source)
        raise PipelineError(
            f"{_mismatches(unmatched, source, data)}; {_advice(results, source, typed, data)}"
        )
    return list(references)


def by_file_names(results: Results, references: Mapping[str, Any], source: Path) -> Results:
    """Results that name images by their file names in the references, under the ids there.

    Only where none is named by its id and most are by a file name of one image; else the results
    as they are, with a warning where several images have the name.
    """
    names = {i: _bare(given) for i, given in results.given.items() if isinstance(given, str)}
    if not names or any(image in references for image in results.captions):
        return results
    data = data_set(source)
    table: dict[str, list[str]] = {}
    for image in [] if data is None else data.images:
        if isinstance(image.filename, str):
            table.setdefault(_bare(image.filename), []).append(canonical_id(image.image_id))
    found = {image: table[name] for image, name in names.items() if name in table}
    if 2 * len(found) <= len(results.captions):
        return results
    ids = {image: found.get(image, [image])[0] for image in results.captions}
    counts = Counter(ids.values())
    doubled = [i for i, images in found.items() if len(images) > 1 or counts[ids[i]] > 1]
    if doubled:
        log.warning(
            "%s: %s named by file names that are not of one image each in %s; give their ids",
            *(results.path, named(results.given[image] for image in doubled), source),
        )
        return results
    log.info("%s: images are named by their file_name in %s", results.path, source)
    return replace(
        results,
        captions={ids[image]: text for image, text in results.captions.items()},
        given={ids[image]: given for image, given in results.given.items()},
    )


def _bare(name: str) -> str:
    """A file name without folder and suffix."""
    return canonical_id(re.split(r"[/\\]", name)[-1])


def _advice(
    results: Sequence[Results], source: Path, typed: Sequence[str], data: CaptionData | None
) -> str:
    """What to type where the images differ: the split of the results, else the shared images."""
    split = None if "--split" in typed else _split_of(results, data)
    if split is not None:
        return _in_split(results, split)
    files = [str(result.path) for result in results]
    line = ["--results", *files, "--references", str(source), *typed, "--subset"]
    others = [] if "--split" in typed else _splits(data)
    other = f" (or pick one split by --split: {', '.join(others)})" if len(others) > 1 else ""
    return f"to score the images that all files share: pipeline eval {shlex.join(line)}{other}"


def _splits(data: CaptionData | None) -> list[str]:
    """The splits of a references file as --split takes them, in the file's order."""
    images = [] if data is None else data.images
    found = dict.fromkeys(image.split for image in images if isinstance(image.split, str))
    return [split for split in found if split == "train" or split not in TRAIN_SPLITS]


def _split_of(results: Sequence[Results], data: CaptionData | None) -> str | None:
    """The one of several splits that all images of the results are in."""
    if data is None or len(_splits(data)) < 2:
        return None
    splits = {
        canonical_id(image.image_id): image.split
        for image in data.images
        if isinstance(image.split, str)
    }
    found = {splits.get(image) for result in results for image in result.captions}
    if found <= set(TRAIN_SPLITS):
        return TRAIN_SPLITS[0]
    return found.pop() if len(found) == 1 else None


def _in_split(results: Sequence[Results], split: str) -> str:
    files = _listed(str(result.path) for result in results)
    return f"all images of {files} are in the split {split}: --split {shlex.quote(split)}"


def _mismatches(
    unmatched: Iterable[tuple[Results, Sequence[str], Sequence[str]]],
    source: Path,
    data: CaptionData | None,
) -> str:
    """Which images each file lacks, of results with missing and extra canonical ids."""
    bare = set() if data is None else {canonical_id(image) for image in data.uncaptioned}
    problems = []
    for result, missing, extra in unmatched:
        unknown = [result.given[i] for i in extra if i not in bare]
        wordless = [result.given[i] for i in extra if i in bare]
        if missing:
            problems.append(f"{result.path} has no caption for {named(missing)} of {source}")
        if unknown:
            problems.append(f"{result.path} has captions for {named(unknown)} not in {source}")
        if wordless:
            problems.append(f"{source} has no caption for {named(wordless)} of {result.path}")
    return "; ".join(problems)


def _nothing_shared(
    references: Mapping[str, Any], results: Sequence[Results], source: Path, typed: Sequence[str]
) -> str:
    ours = [result.given[i] for result in results for i in list(result.captions)[:3]]
    theirs = list(references)[:3]
    advice = "give the references of these images"
    if "--split" in typed:
        split = _split_of(results, data_set(source))
        advice = (
            f"{advice} or another --split"
            if split is None or split in typed
            else _in_split(results, split)
        )
    return (
        f"{_listed(str(result.path) for result in results)} and {source} share no image: the ids"
        f" are like {_listed(ours)} and like {_listed(theirs)}; {advice}"
    )


def named(ids: Iterable[int | str]) -> str:
    ids = list(ids)
    rest = f", and {len(ids) - NAMED:,} more" if len(ids) > NAMED else ""
    return f"{counted(len(ids), 'image')} ({_listed(ids[:NAMED])}{rest})"


def _listed(ids: Iterable[int | str]) -> str:
    return ", ".join(str(i) for i in ids)
