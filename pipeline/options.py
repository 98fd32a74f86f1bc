"""Options that several commands have."""

from __future__ import annotations

import click

image_ids = click.option(
    "--id",
    "ids",
    type=click.Choice(["name", "relative-path"]),
    default="name",
    show_default=True,
    help="Image ids: COCO's number or the file's stem, or the path in the folder.",
)
