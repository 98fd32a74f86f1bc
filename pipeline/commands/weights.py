"""`pipeline weights`: the public checkpoints of detectors and captioners."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click
from tqdm import tqdm

from extract import weights
from extract.weights_convert import convert as convert_checkpoint
from extract.weights_fetch import fetch as fetch_weights
from pipeline.recipe import as_typed

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REPLACE = click.option("--replace", is_flag=True, help="Also where one is kept already.")


@click.group()
def command() -> None:
    """List, download, take over and convert the checkpoints of detectors; import captioners.

    \b
    pipeline weights list
    pipeline weights fetch grid-x101
    pipeline weights import --from m2 meshed_memory_transformer.pth --vocab vocab.pkl --out m2
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """The known checkpoints: file, address, licence, size, sha256, and whether they are here."""
    entries = weights.catalogue().values()
    if as_json:
        facts = [{**asdict(e), "path": str(e.path) if e.path.is_file() else None} for e in entries]
        click.echo(json.dumps(facts))
        return
    for entry in entries:
        here = f"here: {entry.path}" if entry.path.is_file() else "not here"
        about = "about " if entry.about else ""
        size = f"{about}{entry.megabytes:g} MB" if entry.megabytes else "size unknown"
        click.echo(f"{entry.name}: {entry.note}")
        click.echo(f"  presets  {', '.join(entry.presets) or '-'}")
        click.echo(f"  file     {entry.file}, {size}, {entry.licence}; {here}")
        click.echo(f"  from     {entry.url or '(by hand)'}")
        click.echo(f"  page     {entry.page}")
        if entry.names:
            files = "objects_vocab.txt, attributes_vocab.txt"
            click.echo(f"  names    {files} in {entry.names} of that page")
        short = entry.sha256 is not None and len(entry.sha256) < 64
        click.echo(f"  sha256   {entry.sha256 or 'not published'}{' ...' if short else ''}")


@command.command()
@click.argument("name")
@_REPLACE
def fetch(name: str, replace: bool) -> None:
    """Download the checkpoint NAME, or that of the preset NAME; goes on where it stopped.

    One that is kept already is checked, and stays unless --replace is given.

    \b
    pipeline weights fetch grid-x101
    """
    entry = _known(name)
    with tqdm(unit="B", unit_scale=True, desc=entry.name, disable=None) as bar:

        def on_bytes(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        path = fetch_weights(entry, on_bytes, replace=replace)
    click.echo(f"{entry.name}: {path}")


@command.command()
@click.argument("name")
@click.argument("file", type=_FILE)
@_REPLACE
def add(name: str, file: Path, replace: bool) -> None:
    """Take FILE, got by hand, as the checkpoint NAME, or as that of the preset NAME.

    A file that is no checkpoint, or does not fit that preset's network, is refused.

    \b
    pipeline weights add bua-caffe-r101-36 bua-caffe-frcn-r101-k36.pth
    """
    entry = _known(name)
    click.echo(f"{entry.name}: {weights.add(entry.name, file, replace=replace)}")


@command.command()
@click.argument("file", type=_FILE)
@click.option("--out", type=click.Path(path_type=Path), help="By default FILE.safetensors.")
def convert(file: Path, out: Path | None) -> None:
    """Write the checkpoint FILE as safetensors, with a JSON beside that lists its tensors.

    \b
    pipeline weights convert X-101.pth --out X-101.safetensors
    """
    target = file.with_suffix(".safetensors") if out is None else out
    facts = convert_checkpoint(file, target)
    click.echo(f"{target}: {len(facts['tensors']):,} tensors, {facts['parameters']:,} numbers")


@command.command("import")
@click.argument("file", type=_FILE)
@click.option("--from", "source", required=True, type=click.Choice(["m2"]), help="Whose.")
@click.option("--vocab", required=True, type=_FILE, help="The vocabulary that came with it.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Run folder."
)
@click.option("--features", type=click.Path(exists=True, path_type=Path), help="Cache of its run.")
@click.option("--captions", type=_FILE, help="Caption file of its run.")
def import_(
    file: Path,
    source: str,
    vocab: Path,
    out: Path,
    features: Path | None,
    captions: Path | None,
) -> None:
    """Make a run folder of a captioner's published checkpoint FILE.

    \b
    m2   the Meshed-Memory Transformer: its .pth and its vocab.pkl

    \b
    pipeline weights import --from m2 meshed_memory_transformer.pth --vocab vocab.pkl --out m2
    pipeline eval --run m2 --features CACHE --captions dataset_coco.json --split test

    Pickles are read by loaders that run nothing of them.
    """
    from pipeline.imports import import_m2  # imports torch

    run = import_m2(file, vocab, out, features=features, captions=captions)
    given = "" if features else " --features CACHE"
    given += "" if captions else " --captions FILE"
    click.echo(f"{run.path}: imported")
    click.echo(f"next: pipeline eval --run {shlex.quote(str(run.path))} --split test{given}")


def _known(name: str) -> weights.Weights:
    """A checkpoint by its name or a preset's; a name that there is not is wrong usage."""
    with as_typed():
        return weights.get(name)
