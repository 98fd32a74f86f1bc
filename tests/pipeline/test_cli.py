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


@pytest.mark.parametrize(
    ("typed", "option"),
    [
        ("explain toy1 --run . --run .", "--run"),
        ("eval --results a.json --references a.json --references b.json", "--references"),
        ("eval --run . --beam 2 --split test --beam=3", "--beam"),
        ("train --recipe transformer --out a --out b --out c", "--out"),
        ("cache import a --format npz --format npz", "--format"),
    ],
)
def test_an_option_of_one_value_is_not_given_twice(typed: str, option: str) -> None:
    found = CliRunner().invoke(cli, typed.split())
    count = typed.count(option)
    assert found.exit_code == 2 and "Usage: " in found.output
    assert f"Error: {option} is given {count} times, wanted once" in found.output


def test_options_of_several_values_and_flags_may_be_repeated() -> None:
    typed = "train --recipe transformer -o seed=1 -o xe.epochs=2 --show --show"
    found = CliRunner().invoke(cli, typed.split())
    assert found.exit_code == 0 and "epochs: 2" in found.output, found.output
