"""`pipeline cache`: look at, check, merge, compare, import and export feature caches."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from extract.cache import FeatureCache, flat
from extract.cache_compare import compare as compare_caches
from extract.cache_compare import shared_ids
from extract.cache_folder import failures_files
from extract.cache_merge import merge as merge_caches
from extract.cache_summary import inspect as inspect_cache
from extract.cache_verify import Report, image_count
from extract.cache_verify import verify as verify_cache
from extract.counts import counted
from pipeline.commands.cache_formats import export, import_
from pipeline.commands.cache_show import show
from pipeline.id_list import read_names
from pipeline.progress import Progress

_PATH = click.Path(exists=True, path_type=Path)
_SHOWN = 10  # problems printed without --json


@click.group()
def command() -> None:
    """Look at, check, merge, compare, import and export feature caches.

    \b
    pipeline cache inspect features
    """


command.add_command(import_)
command.add_command(export)
command.add_command(show)


@command.command()
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(path: Path, as_json: bool) -> None:
    """What the cache at PATH holds and how it was made.

    \b
    pipeline cache inspect features
    """
    facts = inspect_cache(path)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    failed = f", {facts['failures']:,} failed" if path.is_dir() else ""
    click.echo(
        f"{path}: {counted(facts['images'], 'image')}{failed}, {facts['form']},"
        f" {counted(facts['files'], 'file')}, {facts['bytes'] / 1e6:,.1f} MB"
    )
    if not facts["images"]:
        click.echo(
            "  empty: no image in it yet; pipeline extract ... --out"
            f" {shlex.quote(str(path))} brings some"
        )
    listed = ", ".join(map(str, failures_files(path).values()))
    for reason, count in facts["failure_reasons"].items():
        click.echo(f"  failed: {reason}: {count:,} (see {listed})")
    click.echo(
        f"\n  {'stream':<14}{'width':>6} {'type':<8}{'rows':>12}{'min':>6}{'mean':>8}{'max':>6}"
    )
    for name, stream in facts["streams"].items():
        mean = "-" if stream["rows_mean"] is None else f"{stream['rows_mean']:.1f}"
        low, high = (stream[k] if stream["rows"] else "-" for k in ("rows_min", "rows_max"))
        shapes = ", ".join(f"{shape}: {count:,}" for shape, count in stream["grid_shapes"].items())
        click.echo(
            f"  {name:<14}{stream['width']:>6} {stream['dtype']:<8}{stream['rows']:>12,}"
            f"{low:>6}{mean:>8}{high:>6}  with {', '.join(stream['with']) or 'rows only'}"
            + (f"; grids {shapes}" if shapes else "")
        )
    click.echo("")
    for key, value in flat(facts["meta"]).items():
        long = isinstance(value, list) and len(value) > 20
        click.echo(f"  {key} = {f'{len(value):,} values' if long else value}")


@command.command()
@click.argument("path", type=_PATH)
@click.option(
    "--ids",
    type=_PATH,
    help="Images that must be there: a list, a CSV, or Karpathy or COCO captions JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(path: Path, ids: Path | None, as_json: bool) -> int:
    """Check every byte, id and value of the cache at PATH; exit code 1 when something is wrong.

    \b
    pipeline cache verify features --ids dataset.json
    """
    wanted = None if ids is None else read_names(ids)
    with Progress(image_count(path), unit="images", label="verify") as progress:
        report = verify_cache(path, wanted, on_done=progress.update)
    if as_json:
        click.echo(json.dumps(_as_json(report), ensure_ascii=False))
    else:
        _show(report, ids)
    return 0 if report.sound else 1


def _as_json(report: Report) -> dict[str, Any]:
    problems = [
        {"file": str(p.file), "image_id": p.image_id, "problem": p.what} for p in report.problems
    ]
    return {
        "path": str(report.path),
        "sound": report.sound,
        "images": report.images,
        "problems": problems,
        "missing": report.missing,
        "advice": report.advice(),
    }


def _show(report: Report, ids: Path | None) -> None:
    for problem in report.problems[:_SHOWN]:
        click.echo(str(problem))
    for name, why in list(report.missing.items())[:_SHOWN]:
        click.echo(f"missing: {name!r} of {ids}: {why}")
    if report.sound:
        held = counted(report.images, "image") if report.images else "but empty: no image in it yet"
        click.echo(f"{report.path}: sound, {held}")
        return
    if max(len(report.problems), len(report.missing)) > _SHOWN:
        click.echo(f"... the first {_SHOWN} of each kind are shown; --json gives all")
    click.echo(
        f"{report.path}: {counted(len(report.problems), 'problem')} in"
        f" {counted(report.images, 'image')}, {len(report.missing):,} missing",
        err=True,
    )
    for line in report.advice():
        click.echo(line, err=True)


@command.command()
@click.argument("paths", nargs=-1, required=True, type=_PATH)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to make.")
def merge(paths: tuple[Path, ...], out: Path) -> None:
    """Make one HDF5 file, images in order of their ids, of the caches at PATHS.

    \b
    pipeline cache merge features --out features.h5
    """
    total = 0
    for path in paths:
        cache = FeatureCache(path)
        total += len(cache)
        if failed := len(cache.failures()):
            click.echo(f"note: {counted(failed, 'image')} of {path} failed, not merged", err=True)
    with Progress(total, unit="images", label="merge") as progress:
        count = merge_caches(paths, out, on_done=progress.update)
    click.echo(f"{out}: {counted(count, 'image')}, {out.stat().st_size / 1e6:,.1f} MB")


@command.command()
@click.argument("a", type=_PATH)
@click.argument("b", type=_PATH)
@click.option("--worst", type=click.IntRange(min=0), default=10, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(a: Path, b: Path, worst: int, as_json: bool) -> None:
    """How far the caches A and B agree: overlap of their boxes, cosine of their features.

    \b
    pipeline cache compare released.h5 mine
    """
    total = len(shared_ids(FeatureCache(a), FeatureCache(b)))
    with Progress(total, unit="images", label="compare") as progress:
        facts = compare_caches(a, b, worst=worst, on_done=progress.update)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    click.echo(f"{counted(facts['shared'], 'image')} in both {a} and {b}")
    for place, path in (("only_a", a), ("only_b", b)):
        if facts[place]:
            shown = ", ".join(facts[place][:10]) + (", ..." if len(facts[place]) > 10 else "")
            click.echo(f"{counted(len(facts[place]), 'image')} only in {path}: {shown}")
        if streams := facts[f"streams_{place}"]:
            click.echo(f"streams only in {path}: {', '.join(streams)}")
    if facts["other_size"]:
        shown = ", ".join(facts["other_size"][:10])
        click.echo(
            f"{counted(len(facts['other_size']), 'image')} of another width and height: {shown}"
        )
    for line in facts["settings"]:
        click.echo(f"setting {line}")
    for name, stream in facts["streams"].items():
        _show_stream(name, stream)


def _show_stream(name: str, stream: dict[str, Any]) -> None:
    first, second = stream["widths"]
    why = f" (widths {first} and {second})" if first != second else ""
    click.echo(
        f"\n{name}: {stream['matched']:,} pairs of rows, {stream['unmatched']:,} rows without"
        f" partner\n  mean IoU {_number(stream['iou'])}, mean cosine {_number(stream['cosine'])}"
        f"{why}, lowest cosine of a pair {_number(stream['cosine_min'])}"
    )
    if stream["worst"]:
        click.echo(f"  {'worst images':<32}{'IoU':>8}{'cosine':>8}{'pairs':>7}{'alone':>7}")
    for image in stream["worst"]:
        click.echo(
            f"  {image['image_id']:<32}{_number(image['iou']):>8}{_number(image['cosine']):>8}"
            f"{image['matched']:>7}{image['unmatched']:>7}"
        )


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"
