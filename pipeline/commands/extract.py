"""`pipeline extract`: photographs to a feature cache."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from extract import presets
from extract.boxes import GivenBoxes, read_boxes
from extract.cache import flat
from extract.cache_folder import failures_path
from extract.counts import counted
from extract.detector_presets import BACKENDS, DetectorPreset
from extract.share import Share
from extract.sources import Source, find_sources
from pipeline.errors import PipelineError
from pipeline.options import image_ids
from pipeline.processes import SOME_FAILED, ended_by_interrupt
from pipeline.progress import Progress
from pipeline.recipe import as_typed, override

if TYPE_CHECKING:  # what imports torch is imported where there is work for it
    from extract.prepared import FeatureExtractor
    from extract.run import Failure, Summary

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_SHOWN = 10  # failures told one by one


@click.command()
@click.argument("inputs", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--preset", "name", help="How features are made; see --list-presets.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the cache."
)
@click.option(
    "--weights",
    type=_FILE,
    help="Checkpoint of a detector; NAME.yaml beside NAME.pth is its detectron2 configuration.",
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="Who runs a detector: this program, or detectron2 where it is installed.",
)
@click.option("--boxes", type=_FILE, help="JSON of boxes: region features.")
@click.option(
    "-o", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a preset's number."
)
@image_ids
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option("--workers", type=click.IntRange(min=1), default=min(4, os.cpu_count() or 1))
@click.option("--dry-run", is_flag=True, help="Count usable images and bytes; write nothing.")
@click.option("--list-presets", is_flag=True, help="Show the presets with every number.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    inputs: tuple[Path, ...],
    name: str | None,
    out: Path | None,
    weights: Path | None,
    backend: str,
    boxes: Path | None,
    overrides: tuple[str, ...],
    ids: str,
    device: str,
    workers: int,
    dry_run: bool,
    list_presets: bool,
    as_json: bool,
) -> int:
    """Extract features of INPUTS: folders, images, lists (.txt) or tables (.csv).

    \b
    pipeline extract PHOTOS --preset imagenet-grid --out features

    The same command goes on where it was stopped. Exit code 3: some images failed; their reasons
    are in OUT/failures.jsonl, and the next run tries them again.

    \b
    Several processes, each with its share of the images and, where there are such, its GPU:
    torchrun --nproc-per-node 4 -m pipeline extract PHOTOS --preset imagenet-grid --out features
    """
    if list_presets:
        _list_presets(as_json)
        return 0
    missing = [
        flag
        for flag, value in (("INPUTS", inputs), ("--preset", name), ("--out", out))
        if not value
    ]
    if missing or name is None or out is None:
        raise click.UsageError(f"{', '.join(missing)} missing; see pipeline extract --help")
    from extract.run import extract

    preset, weights = _chosen(name, weights, overrides)
    given = read_boxes(boxes) if boxes is not None else None
    sources = find_sources(inputs, relative_ids=ids == "relative-path")
    extractor = _extractor(name, preset, device, given, weights, backend)
    if dry_run:
        extractor.load()  # says whether the weights fit
        _dry_run(sources, extractor, out, workers, as_json)
        return 0
    share = Share.of_environment()
    total = sum(share.has(source.image_id) for source in sources)
    label = f"extract {share.rank}" if share.world > 1 else "extract"
    with Progress(total, unit="images", label=label) as progress, ended_by_interrupt():
        summary = extract(
            sources, extractor, out, workers=workers, share=share, on_done=progress.update
        )
    _show(summary, total, out, share, as_json)
    # With an exit code of 3, torchrun would stop the other processes.
    return SOME_FAILED if summary.failures and share.world == 1 else 0


def _chosen(
    name: str, weights: Path | None, overrides: Sequence[str]
) -> tuple[presets.Preset | DetectorPreset, Path | None]:
    """The preset as typed, and a detector's checkpoint: the one given, else the preset's own."""
    from extract.extractors import with_configuration
    from extract.weights import find_weights

    with as_typed():
        preset = presets.get(name)
    if weights is None and isinstance(preset, DetectorPreset):
        weights = find_weights(name)
    with as_typed():
        return override(with_configuration(preset, weights), overrides), weights


def _extractor(
    name: str,
    preset: presets.Preset | DetectorPreset,
    device: str,
    boxes: GivenBoxes | None,
    weights: Path | None,
    backend: str,
) -> FeatureExtractor:
    """The preset's extractor on this process's device. Raises WrongUsage."""
    from extract.extractors import make_extractor
    from pipeline.devices import choose_device, own_device

    where = str(own_device(choose_device(device)))
    with as_typed():  # the options do not go together; weights are read later
        return make_extractor(name, preset, where, boxes, weights, backend)


def _list_presets(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({k: asdict(p) for k, p in presets.PRESETS.items()}))
        return
    for name, preset in presets.PRESETS.items():
        click.echo(name)
        for key, value in flat(asdict(preset)).items():
            click.echo(f"  {key} = {value}")


def _dry_run(
    sources: list[Source], extractor: FeatureExtractor, out: Path, workers: int, as_json: bool
) -> None:
    from extract.run import plan

    with Progress(len(sources), unit="images", label="dry run") as progress:
        planned = plan(sources, extractor, out, workers=workers, on_done=progress.update)
    ids = [source.image_id for source in sources[:3]]
    if as_json:
        streams = {k: s.width for k, s in extractor.streams.items()}
        facts = {
            "images": planned.images,
            "already": planned.already,
            "failed": _plain(planned.failures),
            "bytes": planned.bytes,
            "first_ids": ids,
            "streams": streams,
            "out": str(out),
        }
        click.echo(json.dumps(facts))
        return
    _name(planned.failures, "cannot be used")
    more = ", ..." if len(sources) > len(ids) else ""
    click.echo(
        f"{counted(planned.images, 'image')} (ids {', '.join(ids)}{more}),"
        f" {planned.already:,} already there, {len(planned.failures):,} that cannot be used, about"
        f" {planned.bytes / 1e6:,.1f} MB to come into {out}; nothing written"
    )


def _show(summary: Summary, total: int, out: Path, share: Share, as_json: bool) -> None:
    if share.world == 1 and summary.done + summary.already == 0:
        first = summary.failures[0]
        where = "; a list's or table's paths begin at its own folder"
        raise PipelineError(
            f"not one image of {total:,} could be used; first {first.source.file}: {first.reason}:"
            f" {first.detail}{where if first.reason == 'missing' else ''}"
        )
    if as_json:
        failed = _plain(summary.failures)
        facts = {"done": summary.done, "already": summary.already, "failed": failed}
        ranks = {"rank": share.rank, "world": share.world} if share.world > 1 else {}
        click.echo(json.dumps({**facts, "out": str(out), **ranks}))
        return
    _name(summary.failures, "failed")
    whose = f" (share {share.rank} of {share.world})" if share.world > 1 else ""
    click.echo(
        f"{out}{whose}: {counted(summary.done, 'image')} extracted,"
        f" {summary.already:,} already there, {len(summary.failures):,} failed"
        + (f" (reasons in {failures_path(out, share.rank)})" if summary.failures else "")
    )
    if share.rank:
        return
    click.echo(
        f"next: pipeline train --features {shlex.quote(str(out))} --captions CAPTIONS"
        " --recipe RECIPE --out RUN"
    )


def _name(failures: Sequence[Failure], what: str) -> None:
    """The first failures on standard error, and how many more there are."""
    for failure in failures[:_SHOWN]:
        click.echo(f"{what}: {failure.source.file}: {failure.reason}: {failure.detail}", err=True)
    if len(failures) > _SHOWN:
        click.echo(f"{what}: and {len(failures) - _SHOWN} more", err=True)


def _plain(failures: Sequence[Failure]) -> list[dict[str, str]]:
    """Failures for JSON."""
    return [
        {"image_id": f.source.image_id, "file": f.source.file, "reason": f.reason} for f in failures
    ]
