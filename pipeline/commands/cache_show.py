"""`pipeline cache show`: what a cache knows of an image, as a picture."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import click
import numpy as np
from PIL import Image

from extract.cache import FeatureCache, image_id_of
from extract.cache_import import read_vocabulary
from extract.counts import counted
from extract.images import ImageLimits, ImageRules, read_image
from pipeline.errors import PipelineError
from pipeline.files import write_bytes
from pipeline.pictures import label, picture_of

_PATH = click.Path(exists=True, path_type=Path)


@click.command("show")
@click.argument("image_id")
@click.option("--cache", required=True, type=_PATH, help="The cache.")
@click.option("--image", type=_PATH, help="The photograph; by default where the cache found it.")
@click.option("--out", type=click.Path(path_type=Path), help="By default IMAGE_ID.STREAM.png.")
@click.option("--stream", help="Which stream; by default regions, else the first.")
@click.option("--objects", type=_PATH, help="Names of the object classes, one a line from 0 on.")
@click.option("--attributes", type=_PATH, help="Names of the attributes, one a line from 0 on.")
@click.option("--most", type=click.IntRange(min=1), default=40, show_default=True, help="Boxes.")
def show(
    image_id: str,
    cache: Path,
    image: Path | None,
    out: Path | None,
    stream: str | None,
    objects: Path | None,
    attributes: Path | None,
    most: int,
) -> None:
    """Draw the boxes of IMAGE_ID with classes, attributes and scores, or its grid as a heat map.

    A grid's cells are coloured by the norm of their features.

    \b
    pipeline cache show 37209 --cache features --image COCO_val2014_000000037209.jpg
    """
    found = FeatureCache(cache)
    image_id = image_id if image_id in found else image_id_of(image_id)
    if stream is None:
        stream = "regions" if "regions" in found.streams else next(iter(found.streams))
    record = found.read(image_id, [stream])
    names = dict(found.meta.get("names", {}))
    for key, path in (("objects", objects), ("attributes", attributes)):
        if path is not None:
            names[key] = read_vocabulary(path)
    photo = Path(record.file) if image is None else image
    if not photo.is_file():
        raise PipelineError(f"{photo}: the photograph is not there; name it with --image")
    rules = found.meta.get("settings", {}).get("images", {})
    upright = read_image(
        photo, ImageRules(exif_turn=rules.get("exif_turn", True)), ImageLimits(min_side=1)
    )
    picture = picture_of(Image.fromarray(upright.pixels), record, stream, names, most)
    data = BytesIO()
    picture.save(data, "PNG")
    target = Path(f"{image_id.replace('/', '_')}.{stream}.png") if out is None else out
    write_bytes(target, data.getvalue())
    rows = record.streams[stream]
    click.echo(f"{target}: {image_id}, {counted(len(rows), 'row')} of {rows.shape[1]} in {stream}")
    if record.width and (record.width, record.height) != (upright.width, upright.height):
        click.echo(
            f"note: the cache says {record.width} x {record.height}, the photograph has"
            f" {upright.width} x {upright.height}; boxes are scaled",
            err=True,
        )
    extras = record.extras.get(stream, {})
    if "scores" in extras and stream in record.boxes:
        for place in np.argsort(-extras["scores"], kind="stable")[:10].tolist():
            box = " ".join(f"{value:.1f}" for value in record.boxes[stream][place])
            click.echo(f"  {label(extras, place, names):<32} {box}")
