"""`pipeline caption`: somebody's own photographs to captions in one command."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pipeline.options import image_ids
from pipeline.own_photos import Outcome, caption_photos
from pipeline.processes import SOME_FAILED


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--run",
    "runs",
    required=True,
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Trained run; several decode together as an ensemble.",
)
@click.option(
    "--ensemble",
    type=click.Choice(["probabilities", "log_probabilities"]),
    help="What several runs average at every word.  [default: probabilities]",
)
@click.option("--beam", type=click.IntRange(min=1), help="Beam width (default: the run's).")
@click.option("--num-captions", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--boxes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Boxes, for runs on given regions.",
)
@click.option(
    "--weights",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Checkpoint of the run's detector (default: the preset's own, see weights list).",
)
@click.option("--features", type=click.Path(exists=True, path_type=Path), help="A ready cache.")
@image_ids
@click.option("--device", default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    inputs: tuple[Path, ...],
    runs: tuple[Path, ...],
    ensemble: str | None,
    beam: int | None,
    num_captions: int,
    boxes: Path | None,
    weights: Path | None,
    features: Path | None,
    ids: str,
    device: str,
    as_json: bool,
) -> int:
    """Caption INPUTS (photos, folders, lists) with a trained run.

    \b
    pipeline caption holiday/*.jpg --run run

    The run knows how its features were made and makes them so again. Exit code 3: some photos
    failed; 1: all of them did.
    """
    for option, value in (("--weights", weights), ("--boxes", boxes)):
        if value is not None and features is not None:
            raise click.UsageError(f"{option} makes features, --features reads them: give one")
    if ensemble is not None and len(runs) == 1:
        raise click.UsageError("--ensemble goes with two or more --run")
    outcome = caption_photos(
        inputs,
        runs[0],
        others=runs[1:],
        average=ensemble or "probabilities",
        beam=beam,
        keep=num_captions,
        boxes=boxes,
        weights=weights,
        features=features,
        device=device,
        relative_ids=ids == "relative-path",
    )
    _show(outcome, num_captions > 1, as_json)
    _warn_empty(outcome)
    if not outcome.failures:
        return 0
    return SOME_FAILED if outcome.found.captions else 1


def _show(outcome: Outcome, scores: bool, as_json: bool) -> None:
    if as_json:
        entries = [
            {"image_id": i, "file": str(outcome.files[i]), "captions": c, "log_probabilities": s}
            for (i, c), s in zip(
                outcome.found.captions.items(), outcome.found.scores.values(), strict=True
            )
        ]
        failed = [
            {"file": str(f.source.path), "reason": f.reason, "detail": f.detail}
            for f in outcome.failures
        ]
        click.echo(json.dumps({"captions": entries, "failed": failed}, ensure_ascii=False))
    else:
        for image, texts in outcome.found.captions.items():
            for text, score in zip(texts, outcome.found.scores[image], strict=True):
                note = f"\t{score:.2f}" if scores else ""
                click.echo(f"{outcome.files[image]}\t{text}{note}")
        for failure in outcome.failures:
            message = f"{failure.source.path}: {failure.reason}: {failure.detail}"
            click.echo(f"failed: {message}", err=True)


def _warn_empty(outcome: Outcome) -> None:
    empty = [str(outcome.files[i]) for i, texts in outcome.found.captions.items() if not texts[0]]
    if empty:
        shown = ", ".join(empty[:10]) + (", ..." if len(empty) > 10 else "")
        click.echo(
            f"warning: empty captions: {len(empty)} of {len(outcome.found.captions)} ({shown});"
            " the run has not learned to say anything there: train one with more epochs",
            err=True,
        )
