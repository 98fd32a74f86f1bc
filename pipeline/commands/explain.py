"""`pipeline explain`: why a run's captioner said each word of an image's caption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pipeline.explain_sheet import png
from pipeline.explaining import Explained, explain_image, memory_note, numbers, sheet_of
from pipeline.files import write_bytes


@click.command()
@click.argument("image")
@click.option("--run", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--caption", help="Explain this caption instead of the decoded one.")
@click.option("--out", type=click.Path(path_type=Path), help="PNG (RUN/explained/IMAGE.png).")
@click.option("--maps", type=click.Choice(["mean", "all"]), default="mean", show_default=True)
@click.option("--steps", type=click.IntRange(min=5), default=50, show_default=True)
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the photographs, where they have moved since extraction.",
)
@click.option("--features", type=click.Path(exists=True, path_type=Path), help="A ready cache.")
@click.option("--boxes", type=click.Path(exists=True, path_type=Path), help="Boxes of a file.")
@click.option(
    "--weights",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Checkpoint of the run's detector (default: the preset's own, see weights list).",
)
@click.option("--device", default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print every number as JSON.")
def command(
    image: str,
    run: Path,
    caption: str | None,
    out: Path | None,
    maps: str,
    steps: int,
    features: Path | None,
    images: Path | None,
    boxes: Path | None,
    weights: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Explain the caption of IMAGE, an id in the run's features or a photo's file.

    \b
    pipeline explain 1000268201_693b08cb0e --run run
    pipeline explain holiday/beach.jpg --run run --caption "a dog on the beach"

    Draws a column per word: the regions that made the captioner say it (integrated gradients), and
    where it looked (attention). --maps all draws every layer and head. --steps is the length of the
    gradients' path to begin with.
    """
    for option, value in (("--weights", weights), ("--boxes", boxes)):
        if value is not None and features is not None:
            raise click.UsageError(f"{option} makes features, --features reads them: give one")
    found = explain_image(
        run,
        image,
        caption=caption,
        features=features,
        images=images,
        boxes=boxes,
        weights=weights,
        steps=steps,
        device=device,
    )
    path = out or run / "explained" / f"{found.image_id.replace('/', '_')}.png"
    write_bytes(path, png(sheet_of(found, every=maps == "all")))
    if as_json:
        click.echo(json.dumps({**numbers(found), "picture": str(path)}, ensure_ascii=False))
    else:
        click.echo("\n".join([*_table(found), str(path)]))


def _table(found: Explained) -> list[str]:
    """A line per word."""
    looks, scores = found.looks, found.scores
    titles = ["word", "log p", "image adds", "top row"]
    history = None if looks is None else looks.history_weight()
    gates = None if looks is None or looks.gates is None else looks.gates.mean(dim=0)  # (E, T)
    titles += ["history"] * (history is not None) + ["gates"] * (gates is not None)
    lines = [titles]
    for t, word in enumerate(found.words):
        top = int(scores[t].argmax())
        cells: list[Any] = [word, "" if looks is None else f"{float(looks.log_probs[t]):.2f}"]
        cells += [f"{float(found.attributions.gained[t]):+.2f}", f"{found.stream} {top}"]
        cells += [] if history is None else [f"{100 * float(history[-1, t]):.1f} %"]
        cells += [] if gates is None else [" ".join(f"{float(g):.2f}" for g in gates[:, t])]
        lines.append(cells)
    widths = [max(len(line[n]) for line in lines) for n in range(len(titles))]
    shown = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    memory = memory_note(found)
    shown += [] if memory is None else [memory]
    return [line.rstrip() for line in shown]
