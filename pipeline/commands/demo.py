"""`pipeline demo`: the whole way on generated scenes, with a table at the end."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.demo import run_demo


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder of everything the demo makes.",
)
@click.option("--images", type=click.IntRange(min=20), default=1000, show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option(
    "-o", "overrides", multiple=True, metavar="KEY=VALUE", help="Override the recipe's settings."
)
def command(out: Path, images: int, device: str, overrides: tuple[str, ...]) -> None:
    """Pictures of shapes to captions, scores, a table and a report; nothing is downloaded.

    Run again, it does no work twice.
    """
    table, report = run_demo(out, images, device, overrides)
    click.echo(table)
    click.echo(f"report: {report}")
