"""Options that several commands have, and what holds for those of all commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

image_ids = click.option(
    "--id",
    "ids",
    type=click.Choice(["name", "relative-path"]),
    default="name",
    show_default=True,
    help="Image ids: COCO's number or the file's stem, or the path in the folder.",
)


def refuse_repeated(context: click.Context, arguments: Sequence[str]) -> None:
    """Refuse, for a command or a command of a group, a value typed twice where the last would do.

    Raises UsageError. Flags may be repeated, which changes nothing.
    """
    command = context.command
    _, rest, order = command.make_parser(context).parse_args(list(arguments))
    for option, count in Counter(order).items():
        if isinstance(option, click.Option) and not (option.multiple or option.is_flag):
            if count > 1:
                raise click.UsageError(
                    f"{max(option.opts, key=len)} is given {count} times, wanted once", context
                )
    if isinstance(command, click.Group) and rest:
        inner = command.get_command(context, rest[0])
        if inner is not None:
            refuse_repeated(click.Context(inner, context, rest[0]), rest[1:])
