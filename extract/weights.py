"""Public checkpoints by name: where they come from and where they are kept."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from extract.durable import replacing_large, sync_folder, write_text
from extract.errors import ExtractError, WeightsError
from extract.imagenet import sha256_of
from extract.nearest import hint
from extract.weights_check import what_is_wrong


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

    @property
    def to_replace(self) -> str:
        """What to type where the file that is kept is the wrong one."""
        fetch = f", or pipeline weights fetch {self.name} --replace" if self.url else ""
        return f"to replace it type pipeline weights add {self.name} FILE --replace{fetch}"


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
    raise ExtractError(f"no weights {name!r}{hint(name, [*known, *by_preset])}")


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


def add(name: str, file: Path, *, replace: bool = False) -> Path:
    """Take a file got by hand; returns where it is kept.

    Raises ExtractError when it is not that checkpoint, or when one is there and `replace` is off.
    """
    entry = get(name)
    if entry.path.exists() and not replace:
        raise ExtractError(
            f"{entry.path} is there already; to put {file} in its place type: pipeline weights add"
            f" {entry.name} {shlex.quote(str(file))} --replace"
        )
    check(entry, file, str(file))
    try:
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_large(entry.path) as temporary:
            shutil.copyfile(file, temporary)
            sha256 = sha256_of(temporary)
        return _note(entry, str(file.resolve()), sha256)
    except OSError as error:
        raise ExtractError(f"{entry.path}: cannot be written ({error})") from error


def check(entry: Weights, file: Path, source: str) -> str:
    """The sha256 of a file that is this checkpoint; `source` is named in errors.

    Raises ExtractError when it is another file: no checkpoint, one that does not fit the network
    of the checkpoint's presets (what is missing, left over or misshapen is listed), or one with
    another sha256 than the published.
    """
    wrong = what_is_wrong(file, entry.file, entry.presets)
    if wrong is not None:
        use = f" for {', '.join(entry.presets)}" if entry.presets else ""
        raise WeightsError(f"{source}: {wrong}; wanted {entry.file}{use}; {entry.by_hand}")
    found = sha256_of(file)
    if entry.sha256 and not found.startswith(entry.sha256):
        raise WeightsError(
            f"{source}: sha256 is {found}, wanted {entry.sha256}{'...' * (len(entry.sha256) < 64)}:"
            f" it is damaged or another file than {entry.file}; {entry.by_hand}"
        )
    return found


def keep(entry: Weights, file: Path, source: str, sha256: str) -> Path:
    """Give a checked file its name; beside it goes a JSON of source and sha256."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    os.replace(file, entry.path)
    sync_folder(entry.path.parent)
    return _note(entry, source, sha256)


def _note(entry: Weights, source: str, sha256: str) -> Path:
    facts = {"source": source, "sha256": sha256, "bytes": entry.path.stat().st_size}
    write_text(entry.path.with_name(f"{entry.file}.json"), json.dumps(facts))
    return entry.path
