"""`pipeline cache import` and `export`: between other programs' feature files and ours."""

from __future__ import annotations

import json
from pathlib import Path

import click

from extract.cache import FeatureCache
from extract.cache_export import export_features
from extract.cache_import import Imported, import_features, read_vocabulary
from extract.counts import counted
from extract.errors import ExtractError
from extract.formats import registry
from extract.image_sizes import ImageSizes
from extract.records import DTYPES
from pipeline.processes import SOME_FAILED, ended_by_interrupt
from pipeline.progress import Progress
from pipeline.recipe import as_typed

_PATH = click.Path(exists=True, path_type=Path)
_SHOWN = 20  # bad entries printed without --json
_FORMATS = "\n\n\b\n" + "\n".join(f"{k:<12} {f.summary}" for k, f in registry.FORMATS.items())


@click.command(
    "import",
    help="Bring other programs' feature files SOURCES into a feature cache.\n\n\b\n"
    "pipeline cache import trainval_36.tsv --out features\n\n"
    "The same command goes on where it was stopped. Exit code 3: some entries were bad; they are"
    " listed in OUT/failures.jsonl, the good ones are there." + _FORMATS,
)
@click.argument("sources", nargs=-1, required=True, type=_PATH)
@click.option("--format", "kind", help="Their format; told from the files where only one fits.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the cache.")
@click.option("--name", help="What stands for the preset; by default imported-FORMAT.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of the rows; by default the source's.")
@click.option("--objects", type=_PATH, help="Names of the object classes, one a line from 0 on.")
@click.option("--attributes", type=_PATH, help="Names of the attributes, one a line from 0 on.")
@click.option(
    "--sizes",
    type=_PATH,
    help="Sizes of the images where the source has none: COCO JSON, or the folder of the images.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def import_(
    sources: tuple[Path, ...],
    kind: str | None,
    out: Path,
    name: str | None,
    dtype: str | None,
    objects: Path | None,
    attributes: Path | None,
    sizes: Path | None,
    as_json: bool,
) -> int:
    with as_typed():
        named = registry.get(kind) if kind else None
    given = [(s, named or registry.guess(s)) for s in sources]
    if len({each.name for _, each in given}) > 1:
        shown = ", ".join(f"{s} is {each.name}" for s, each in given)
        raise ExtractError(f"{shown}; import files of one format at a time")
    vocabularies = {"objects": objects, "attributes": attributes}
    names = {key: read_vocabulary(path) for key, path in vocabularies.items() if path is not None}
    known = ImageSizes(sizes) if sizes is not None else None
    with Progress(None, unit="images", label="import") as progress, ended_by_interrupt():
        found = import_features(
            given, out, name=name, dtype=dtype, names=names, sizes=known, on_done=progress.update
        )
    _show(found, out, as_json)
    return SOME_FAILED if found.failures else 0


def _show(found: Imported, out: Path, as_json: bool) -> None:
    if as_json:
        failures = [{"where": where, "problem": what} for where, what in found.failures]
        counts = {"done": found.done, "already": found.already, "repeated": found.repeated}
        click.echo(json.dumps({**counts, "failed": failures, "out": str(out)}))
        return
    for where, what in found.failures[:_SHOWN]:
        click.echo(f"bad: {where}: {what}", err=True)
    if len(found.failures) > _SHOWN:
        click.echo(f"... the first {_SHOWN} are shown; --json gives all", err=True)
    click.echo(
        f"{out}: {counted(found.done, 'image')} imported, {found.already:,} already there,"
        f" {len(found.failures):,} bad, {found.repeated:,} repeated"
    )
    cache = FeatureCache(out)
    if cache.ids and not cache.read(cache.ids[0], []).width:
        click.echo(
            "note: the sizes of the images are not known, which models that use boxes need;"
            " --sizes gives them",
            err=True,
        )


@click.command(
    "export",
    help="Write the cache at CACHE as another program's feature files.\n\n\b\n"
    "pipeline cache export features --format m2-hdf5 --out coco_detections.hdf5" + _FORMATS,
)
@click.argument("cache", type=_PATH)
@click.option("--format", "kind", required=True, help="The format to write.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File or folder.")
def export(cache: Path, kind: str, out: Path) -> None:
    with as_typed():
        chosen = registry.get(kind)
    with Progress(len(FeatureCache(cache)), unit="images", label="export") as progress:
        count = export_features(cache, chosen, out, on_done=progress.update)
    click.echo(f"{out}: {counted(count, 'image')} as {chosen.name}")
