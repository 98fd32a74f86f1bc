"""The README's commands name programs, options, recipes, presets and pages that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from extract.presets import PRESETS
from pipeline.cli import COMMANDS, cli
from pipeline.recipe import shipped

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def command_lines(page: Path) -> list[str]:
    """Every `pipeline ...` line of a page, in code blocks and in backticks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^ {4}(?:\$ )?(pipeline .*)$", text, flags=re.MULTILINE)
    found += re.findall(r"`(pipeline [^`]+)`", text)
    return [line.split("  #")[0] for line in found]


LINES = [(page.name, line) for page in PAGES for line in command_lines(page)]


def test_the_readme_shows_commands() -> None:
    assert len([line for name, line in LINES if name == "README.md"]) >= 10


@pytest.mark.parametrize(("page", "line"), LINES)
def test_command_lines_are_those_of_the_program(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    if words[0].startswith("-") or words[0].isupper():  # `pipeline --version`, `pipeline COMMAND`
        return
    assert words[0] in COMMANDS, f"{page}: {line}"
    command = cli.get_command(click.Context(cli), words[0])
    words = words[1:]
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None, f"{page}: {line}"
    options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    options |= {"--help", "-h"}
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            assert word.split("=")[0] in options, f"{page}: {line}: no option {word}"
    for option, known in (("--preset", set(PRESETS)), ("--recipe", set(shipped()))):
        if option in words:
            value = words[words.index(option) + 1]
            assert value in known or value.isupper() or value.endswith(".yaml"), (
                f"{page}: {line}: no {value}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there and, behind a `#`, to a heading of it."""
    for link in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """The headings as links name them: lower case, blanks as hyphens, no other signs."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_the_pages_have_links() -> None:
    found = [re.findall(r"\]\(([^)]+)\)", p.read_text(encoding="utf-8")) for p in PAGES]
    assert sum(map(len, found)) >= 10
