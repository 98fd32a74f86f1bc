"""`pipeline cache`: look at, check, merge and compare feature caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from caption.data import read_captions
from extract import cache_tools
from extract.cache import flat
from extract.sources import find_sources

_PATH = click.Path(exists=True, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look at, check, merge and compare feature caches."""


@command.command()
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True)
def inspect(path: Path, as_json: bool) -> None:
    """What the cache at PATH holds and how it was made."""
    facts = cache_tools.inspect(path)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    click.echo(f"{path}: {facts['images']:,} images in {facts['files']} files,")
    click.echo(f"  {facts['bytes'] / 1e6:,.1f} MB, {facts['failures']} failed images")
    for name, stream in facts["streams"].items():
        click.echo(
            f"  stream {name}: {stream['rows']:,} rows of {stream['width']} {stream['dtype']},"
            f" {stream['rows_min']} / {stream['rows_mean']:.1f} / {stream['rows_max']} an image"
        )
    for key, value in flat(facts["meta"]).items():
        click.echo(f"  {key} = {value}")


@command.command()
@click.argument("path", type=_PATH)
@click.option("--ids", type=_PATH, help="Images that must be there: captions, list or table.")
def verify(path: Path, ids: Path | None) -> None:
    """Check every byte, id and value of the cache at PATH."""
    wanted: list[str] | None = None
    if ids is not None and ids.suffix.lower() == ".json":
        wanted = [image.image_id for image in read_captions(ids).images]
    elif ids is not None:
        wanted = [source.image_id for source in find_sources([ids])]
    problems = cache_tools.verify(path, wanted)
    for problem in problems[:50]:
        click.echo(problem)
    if problems:
        click.echo(f"{path}: {len(problems)} problems", err=True)
        raise SystemExit(1)
    click.echo(f"{path}: sound")


@command.command()
@click.argument("paths", nargs=-1, required=True, type=_PATH)
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path))
def merge(paths: tuple[Path, ...], out: Path) -> None:
    """Make one contiguous HDF5 file of the caches at PATHS."""
    click.echo(f"{out}: {cache_tools.merge(paths, out):,} images")


@command.command()
@click.argument("first", type=_PATH)
@click.argument("second", type=_PATH)
@click.option("--json", "as_json", is_flag=True)
def compare(first: Path, second: Path, as_json: bool) -> None:
    """How far two caches of the same images agree: box IoU and cosine of features."""
    facts = cache_tools.compare(first, second)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    click.echo(
        f"{facts['shared']} shared images, {len(facts['only_first'])} only in {first},"
        f" {len(facts['only_second'])} only in {second}"
    )
    for line in facts["settings"]:
        click.echo(f"  setting {line}")
    for name, stream in facts["streams"].items():
        click.echo(f"  {name}: IoU {_number(stream['iou'])}, cosine {_number(stream['cosine'])}")
        for image, (iou, cosine) in list(stream["worst"].items())[:3]:
            click.echo(f"    worst {image}: IoU {_number(iou)}, cosine {_number(cosine)}")


def _number(value: Any) -> str:
    return "not comparable" if value is None else f"{value:.4f}"
