"""`pipeline scenes`: pictures of shapes with captions, boxes and splits."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from extract.counts import counted
from pipeline.progress import Progress
from pipeline.recipe import override
from pipeline.scenes.sheet import write_sheet
from pipeline.scenes.world import World
from pipeline.scenes.write import BOXES, DEFAULT_SHARES, IMAGES, SPLITS, Summary, write_scenes

_ON_SHEET = 24


def _shares(ctx: click.Context, option: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in value.split("/"))
    except ValueError:
        shares = ()
    if len(shares) != len(SPLITS):
        raise click.BadParameter(
            f"{value!r} given, wanted three shares or counts such as 0.8/0.1/0.1"
        )
    return shares


@click.command()
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--images", type=click.IntRange(min=1), default=1500, show_default=True, help="How many."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same files.")
@click.option("--size", type=int, default=224, show_default=True, help="Side in pixels.")
@click.option(
    "-o", "dials", multiple=True, metavar="DIAL=VALUE", help="Turn a dial, e.g. -o signed=0.3."
)
@click.option(
    "--splits",
    default="/".join(map(str, DEFAULT_SHARES)),
    show_default=True,
    callback=_shares,
    help="Shares or numbers of train/val/test.",
)
@click.option("--sheet", type=click.Path(dir_okay=False, path_type=Path), help="Contact sheet PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(
    out: Path,
    images: int,
    seed: int,
    size: int,
    dials: tuple[str, ...],
    splits: tuple[float, ...],
    sheet: Path | None,
    as_json: bool,
) -> None:
    """Generate pictures of shapes with captions, boxes and splits; nothing is downloaded.

    \b
    pipeline scenes --out scenes
    pipeline scenes --out signed --images 3000 -o signed=1 -o objects=2,6

    The same call again does no work. The dials are listed in docs/scenes.md and in the
    folder's world.json.
    """
    world = override(World(), dials)
    with Progress(images, unit="images", label="scenes") as progress:
        summary = write_scenes(out, images, seed, size, world, splits, progress.update)
    if sheet is not None:
        write_sheet(sheet, sorted((out / IMAGES).glob("*.jpg"))[:_ON_SHEET])
    following = (
        f"pipeline extract {shlex.quote(str(out / IMAGES))} --preset imagenet-regions"
        f" --boxes {shlex.quote(str(out / BOXES))}"
        f" --out {shlex.quote(str(out / 'features'))}"
    )
    if as_json:
        click.echo(json.dumps({**summary.to_dict(), "next": following}))
        return
    click.echo(_text(summary))
    click.echo(f"next: {following}")


def _text(summary: Summary) -> str:
    counts = ", ".join(f"{split} {count}" for split, count in summary.splits.items())
    done = "wrote" if summary.made else "already there:"
    return (
        f"{summary.out}: {done} {counted(summary.images, 'image')} ({counts}),"
        f" {counted(summary.captions, 'caption')} of {counted(summary.words, 'word')},"
        f" {summary.boxes:,} boxes"
    )
