"""The `pipeline` program: one group whose commands are imported only when asked for."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version

import click

from extract.nearest import hint
from pipeline.errors import USER_ERRORS, WrongUsage
from pipeline.options import refuse_repeated

# command -> one line of help; the command itself is `pipeline.commands.<name>:command`
COMMANDS = {
    "extract": "Photographs to a feature cache.",
    "train": "Feature cache and captions to a trained captioner.",
    "eval": "Decode a split and score it, or score anybody's results.",
    "constraints": "Words that captions are to hold, from detections.",
    "caption": "Photographs to captions with a trained run.",
    "explain": "Why a captioner said each word, drawn over the photograph.",
    "report": "One self-contained HTML page about a run.",
    "cache": "Inspect, verify, merge, compare, import and export feature caches.",
    "weights": "Checkpoints that others published: list, download, convert, import.",
    "scenes": "Generate pictures of shapes with captions, boxes and splits.",
    "reproduce": "Captioners side by side: trained with several seeds, as a table.",
    "demo": "The whole way on generated scenes, in minutes.",
    "setup": "Get the parts that cannot come with the installation.",
    "doctor": "What is installed, what is missing, what to type.",
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            raise click.UsageError(f"no command {name!r}{hint(name, COMMANDS)}", ctx)
        command: click.Command = importlib.import_module(f"pipeline.commands.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            refuse_repeated(click.Context(command, ctx, name), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("caption-pipeline"), prog_name="pipeline")
@click.option("-v", "--verbose", is_flag=True, help="Log details on stderr.")
def cli(verbose: bool) -> None:
    """From a folder of photographs to captions and scores.

    \b
    pipeline extract PHOTOS --preset imagenet-grid --out features
    pipeline train --recipe flickr8k --features features --captions captions.json --out run
    pipeline eval --run run --split test
    """
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(message)s",
        stream=sys.stderr,
        force=True,
    )
    if not verbose:
        logging.getLogger("timm").setLevel(logging.WARNING)


def main(args: Sequence[str] | None = None) -> None:
    """Run the program; turn the errors of all rooms into one line and an exit code."""
    try:
        code = cli.main(args=args, prog_name="pipeline", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        # click raises its Abort from the KeyboardInterrupt that says where the work stands
        said = str(error.__cause__ or error)
        click.echo(said or "interrupted", err=True)
        sys.exit(130)
    except USER_ERRORS as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, WrongUsage) else 1)
    sys.exit(code if isinstance(code, int) else 0)
