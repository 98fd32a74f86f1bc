"""Public checkpoints by name: where they come from and where they are kept."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from extract.durable import sync_folder, temporary_name, write_text
from extract.errors import ExtractError
from extract.imagenet import sha256_of


@dataclass(frozen=True, kw_only=True)
class Weights:
    """One public checkpoint; what is not known is None."""

    name: str
    file: str  # as upstream calls it, and as it is kept
    page: str
    licence: str
    note: str
    url: str | None = None
    megabytes: float | None = None
    about: bool = False  # whether that is of the parameters rather than of the file
    sha256: str | None = None  # or its first digits
    names: str | None = None  # folder of `page` with objects_vocab.txt and attributes_vocab.txt
    presets: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where it is kept, whether it is there or not."""
        return weights_dir() / self.name / self.file

    @property
    def by_hand(self) -> str:
        """What to do where it cannot be downloaded."""
        source = self.url or self.page
        return (
            f"get {self.file} from {source} on any machine, bring it here and type: pipeline"
            f" weights add {self.name} FILE (it is kept as {self.path})"
        )


def weights_dir() -> Path:
    """The folder of all checkpoints; it need not exist.

    `$XDG_DATA_HOME/caption-pipeline/weights`, by default under `~/.local/share`: beside what
    `pipeline setup` keeps.
    """
    home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.local/share"))
    return base / "caption-pipeline" / "weights"


@cache
def catalogue() -> dict[str, Weights]:
    """All public checkpoints that are known."""
    text = resources.files("extract").joinpath("weights.yaml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {
        name: Weights(name=name, **{**entry, "presets": tuple(entry.get("presets", ()))})
        for name, entry in entries.items()
    }


def get(name: str) -> Weights:
    """A checkpoint by its name or a preset's. Raises ExtractError with the nearest name."""
    known = catalogue()
    by_preset = {preset: each for each in known.values() for preset in each.presets}
    if name in known or name in by_preset:
        return known[name] if name in known else by_preset[name]
    near = difflib.get_close_matches(name, [*known, *by_preset], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ExtractError(f"no weights {name!r}; there are {', '.join(known)}{hint}")


def find_weights(name: str) -> Path:
    """The file of a checkpoint, by its name or a preset's. Raises ExtractError saying how to
    get it."""
    entry = get(name)
    if entry.path.is_file():
        return entry.path
    fetch = f"type pipeline weights fetch {entry.name}; without a network " if entry.url else ""
    raise ExtractError(
        f"{name} needs the checkpoint {entry.name}, which is not here; {fetch}{entry.by_hand};"
        " or name a file with --weights"
    )


def add(name: str, file: Path) -> Path:
    """Take a file got by hand; returns where it is kept. Raises ExtractError."""
    entry = get(name)
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(entry.path, os.getpid())
    try:
        shutil.copyfile(file, temporary)
        return keep(entry, temporary, str(file.resolve()))
    except OSError as error:
        raise ExtractError(f"{entry.path}: cannot be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def keep(entry: Weights, file: Path, source: str) -> Path:
    """Check a whole file and give it its name; beside it goes a JSON of source and sha256.

    Raises ExtractError when it is another file than that checkpoint.
    """
    with file.open("rb") as opened:
        head = opened.read(512).lstrip().lower()
    if not head or head.startswith((b"<!doctype", b"<html", b"<?xml")):
        what = "a web page" if head else "an empty file"
        raise ExtractError(f"{source}: is {what}, wanted {entry.file}; {entry.by_hand}")
    found = sha256_of(file)
    if entry.sha256 and not found.startswith(entry.sha256):
        raise ExtractError(
            f"{source}: sha256 is {found}, wanted {entry.sha256}{'...' * (len(entry.sha256) < 64)}:"
            f" it is damaged or another file than {entry.file}; {entry.by_hand}"
        )
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    os.replace(file, entry.path)
    facts = {"source": source, "sha256": found, "bytes": entry.path.stat().st_size}
    write_text(entry.path.with_name(f"{entry.file}.json"), json.dumps(facts), os.getpid())
    sync_folder(entry.path.parent)
    return entry.path
