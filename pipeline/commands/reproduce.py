"""`pipeline reproduce`: a comparison of captioners, trained with several seeds, as a table."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline import comparison as comparisons
from pipeline.comparison import Choice
from pipeline.comparison_page import page
from pipeline.errors import PipelineError
from pipeline.files import write_text
from pipeline.processes import ended_by_interrupt

_CHOICES = "--dataset, --row and --seed"


@click.command()
@click.argument("name", default="cheap")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reproduced"),
    show_default=True,
    help="Folder of everything that is made.",
)
@click.option("--captions", type=click.Path(path_type=Path), help="Caption file of photographs.")
@click.option("--photos", type=click.Path(path_type=Path), help="Folder of those photographs.")
@click.option("--dataset", "datasets", multiple=True, help="Only this dataset (may be repeated).")
@click.option("--row", "rows", multiple=True, help="Only the row of this folder (may be repeated).")
@click.option("--seed", "seeds", multiple=True, type=int, help="Only this seed (may be repeated).")
@click.option("--images", type=click.IntRange(min=20), help="Number of scenes, if not the file's.")
@click.option("--overlay", help="Values over every row's recipe: `tiny`, or a YAML file.")
@click.option("-o", "overrides", multiple=True, metavar="KEY=VALUE", help="Setting of every row.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
def command(
    name: str,
    out: Path,
    captions: Path | None,
    photos: Path | None,
    datasets: tuple[str, ...],
    rows: tuple[str, ...],
    seeds: tuple[int, ...],
    images: int | None,
    overlay: str | None,
    overrides: tuple[str, ...],
    device: str,
) -> int:
    """Train and score every row of the comparison NAME; write the page OUT/NAME.md.

    \b
    pipeline reproduce cheap
    pipeline reproduce cheap --captions captions.json --photos photos
    pipeline reproduce cheap --row ngsan --row transformer --seed 1

    NAME is `cheap` or a YAML file. It needs nobody to watch it: the same command goes on where it
    was stopped, and a row that fails does not stop the others (exit code 1 at the end). With
    --dataset, --row or --seed the chosen part is shown, and the page is left to the whole.
    """
    for option, path in (("--captions", captions), ("--photos", photos)):
        if path is not None and not path.exists():
            raise PipelineError(f"{option} {path}: not there")
    if (captions is None) != (photos is None):
        raise click.UsageError("--captions and --photos go together")
    comparison = comparisons.load(name)
    choice = Choice(
        out=out,
        captions=captions,
        photos=photos,
        datasets=datasets,
        rows=rows,
        seeds=seeds,
        overlay=overlay,
        overrides=overrides,
        images=images,
        device=device,
    )
    with ended_by_interrupt():
        outcomes = comparisons.run_comparison(comparison, choice)
    if not outcomes:
        raise PipelineError("nothing to do: no dataset of this comparison has pictures")
    target = out / f"{Path(name).stem}.md"
    text = page(comparison, outcomes)
    click.echo(text)
    if choice.whole:
        write_text(target, text)
        click.echo(f"written: {target}")
    else:
        click.echo(f"a part, so {target} is not written: the command without {_CHOICES} does it")
    failed = comparisons.missing_runs(outcomes)
    for plan in failed:
        click.echo(f"not finished: {plan.out}", err=True)
    return 1 if failed else 0
