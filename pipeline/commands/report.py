"""`pipeline report`: one self-contained HTML page about a run."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.report import write_report


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the photographs, where they have moved since extraction.",
)
@click.option(
    "--explained",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Captions to explain word by word over their photographs.",
)
@click.option(
    "--features",
    type=click.Path(exists=True, path_type=Path),
    help="Feature cache in place of the run's.",
)
@click.option(
    "--captions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Caption file in place of the run's.",
)
def command(
    run: Path,
    images: Path | None,
    explained: int,
    features: Path | None,
    captions: Path | None,
) -> None:
    """Write RUN/report.html: curves, scores, pictures with captions, words.

    The page holds everything it shows and asks nothing of the network.
    """
    click.echo(write_report(run, images, explained, features=features, captions=captions))
