"""Every command is there and takes what the main group hands down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from pipeline.cli import cli


def _words(command: click.Command, context: click.Context) -> Iterator[tuple[str, ...]]:
    """The words of a command's own name and those of all below it."""
    yield ()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            for words in _words(below, click.Context(below)):
                yield (name, *words)


@pytest.mark.parametrize("words", list(_words(cli, click.Context(cli))), ids=" ".join)
def test_h_is_help_of_every_command(words: tuple[str, ...]) -> None:
    found = CliRunner().invoke(cli, [*words, "-h"])
    assert found.exit_code == 0, found.output
    assert "Usage: " in found.output and "-h, --help" in found.output


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "extract --help",
        "extract --list-presets",
        "extract --list-presets --json",
        "train --help",
        "train --list-recipes",
    ],
)
def test_help_and_lists_do_without_torch(line: str) -> None:
    """Its import takes seconds, which nobody should wait for to read a few lines."""
    program = (
        "import sys; from pipeline.cli import cli; cli.main(sys.argv[1:], standalone_mode=False);"
        " sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"torch was imported, or {done.stderr}"
    assert done.stdout
