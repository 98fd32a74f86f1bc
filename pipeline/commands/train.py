"""`pipeline train`: a feature cache and captions to a trained captioner."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import recipe as recipes
from pipeline.errors import PipelineError, WrongUsage
from pipeline.processes import ended_by_interrupt
from pipeline.recipe import Recipe
from pipeline.settings import commented

if TYPE_CHECKING:  # what imports torch is imported where there is work for it
    from caption.trainer import Position


@click.command()
@click.option("--recipe", "name", help="A recipe's name or YAML file (new runs).")
@click.option("--features", type=click.Path(path_type=Path), help="Feature cache (new runs).")
@click.option("--captions", type=click.Path(path_type=Path), help="Caption file (new runs).")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Run folder.")
@click.option(
    "-o", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a recipe's setting."
)
@click.option("--overlay", help="Values over the recipe's: `tiny` shrinks it for a CPU, or a file.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option("--list-recipes", is_flag=True, help="Show the recipes and exit.")
@click.option(
    "--show", is_flag=True, help="Print the recipe with every setting and its meaning, and exit."
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(
    name: str | None,
    features: Path | None,
    captions: Path | None,
    out: Path | None,
    overrides: tuple[str, ...],
    overlay: str | None,
    device: str,
    list_recipes: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Train a captioner: cross-entropy, then self-critical where the recipe says so.

    \b
    pipeline train --recipe flickr8k --features features --captions captions.json --out run
    pipeline train --recipe transformer --overlay tiny --features features --captions c.json ...
    pipeline train --out run          go on with a run that was interrupted
    """
    if list_recipes:
        for known in recipes.shipped():
            click.echo(f"{known:24} {recipes.describe(known)}")
        return
    recipe, features, captions = _chosen(name, overrides, overlay, features, captions, out)
    if show:
        click.echo(commented(recipe))
        return
    missing = [
        option
        for option, value in (("--features", features), ("--captions", captions), ("--out", out))
        if value is None
    ]
    if missing or features is None or captions is None or out is None:
        raise click.UsageError(f"{', '.join(missing)} missing")
    for option, path in (("--features", features), ("--captions", captions)):
        if not path.exists():
            moved = "" if name else f"; if it was moved, give its new place as {option}"
            raise WrongUsage(f"{option} {path}: not there{moved}")
    position = _trained(recipe, captions, features, out, device)
    if as_json:
        outcome = {"run": str(out), "cider": position.best, "seconds": position.seconds}
        click.echo(json.dumps(outcome))
        return
    spent = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in position.seconds.items())
    click.echo(f"{out}: best validation CIDEr-D {100 * position.best:.1f} ({spent})")
    click.echo(f"next: pipeline eval --run {shlex.quote(str(out))} --split test")


def _chosen(
    name: str | None,
    overrides: Sequence[str],
    overlay: str | None,
    features: Path | None,
    captions: Path | None,
    out: Path | None,
) -> tuple[Recipe, Path | None, Path | None]:
    """Recipe, features and captions: of the run in `out` where there is one and no recipe named."""
    if name is not None:
        return recipes.load(name, overrides, overlay), features, captions
    if out is not None and (out / "config.yaml").is_file():
        if overlay is not None:
            raise click.UsageError("--overlay goes with --recipe only")
        from pipeline.run_folder import open_run

        run = open_run(out)
        recipe = recipes.override(run.recipe, overrides)
        return recipe, features or run.features, captions or run.captions
    known = "pipeline train --list-recipes shows them"
    if out is not None:
        raise click.UsageError(
            f"{out} holds no run to go on with, and --recipe is missing; {known}"
        )
    raise click.UsageError(f"--recipe is missing; {known}")


def _trained(recipe: Recipe, captions: Path, features: Path, out: Path, device: str) -> Position:
    """Train; an interruption before the first checkpoint says that nothing was kept.

    Where there is no room left to write, says how training goes on.
    """
    from caption import checkpoint
    from caption.errors import CannotWrite
    from pipeline.devices import choose_device
    from pipeline.training import train

    chosen = choose_device(device)
    try:
        with ended_by_interrupt():
            _, position = train(recipe, captions, features, out, chosen)
    except KeyboardInterrupt:
        if checkpoint.find(out / "last") is None:
            raise KeyboardInterrupt(
                "interrupted before there was anything to keep: the same command starts at the"
                " beginning"
            ) from None
        raise
    except CannotWrite as error:
        kept = checkpoint.find(out / "last") is not None
        raise PipelineError(
            f"{error}, then pipeline train --out {shlex.quote(str(out))}"
            f" {f'goes on; the state in {out}/last is whole' if kept else 'starts once more'}"
        ) from error
    return position
