"""Settings with what they mean: the comments beside the fields of the configurations.

A field's comment is the one on its own line; a group's is the first line of its docstring.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pipeline.recipe import Recipe, to_plain

_COLUMN = 34  # where comments begin, if there is room


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting: `key` with its groups (`xe.epochs`), value as YAML, meaning."""

    key: str
    value: str
    meaning: str


def settings_of(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Every setting of a dataclass in the order of its fields, groups opened."""
    notes = comments(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{key}.")
        else:
            yield Setting(key=key, value=_flow(value), meaning=notes.get(field.name, ""))


def commented(recipe: Recipe) -> str:
    """A recipe as YAML with every setting and its meaning: a file to begin one's own with."""
    groups: dict[str, list[Setting]] = {}
    for setting in recipe_settings(recipe):
        group, _, name = setting.key.rpartition(".")
        groups.setdefault(group, []).append(dataclasses.replace(setting, key=name))
    lines = []
    for group, settings in groups.items():
        depth = group.count(".") + 1 if group else 0
        if group:
            lines.append(f"{'  ' * (depth - 1)}{group.rpartition('.')[2]}:")
        for setting in settings:
            line = f"{'  ' * depth}{setting.key}: {setting.value}"
            lines.append(f"{line:<{_COLUMN}}  # {setting.meaning}" if setting.meaning else line)
    return "\n".join(lines)


def recipe_settings(recipe: Recipe) -> Iterator[Setting]:
    """Every setting of a recipe, those of its captioner under `model.`."""
    plain = [s for s in settings_of(recipe) if s.key != "model"]
    first = ("name", "source")
    yield from sorted((s for s in plain if "." not in s.key), key=lambda s: s.key not in first)
    yield Setting(key="model.name", value=recipe.model_name(), meaning="the captioner")
    yield from settings_of(recipe.model_config(), "model.")
    yield from (s for s in plain if "." in s.key)


def comments(kind: type) -> dict[str, str]:
    """Field name -> comment on the lines of that field, of a dataclass and those it extends."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if dataclasses.is_dataclass(owner):
            source = textwrap.dedent(inspect.getsource(owner))
            found.update(_comments(source))
    return found


def _comments(source: str) -> dict[str, str]:
    remarks: dict[int, str] = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0]
    fields = [node for node in getattr(body, "body", []) if isinstance(node, ast.AnnAssign)]
    return {
        field.target.id: " ".join(
            remarks[line]
            for line in range(field.lineno, (field.end_lineno or field.lineno) + 1)
            if line in remarks
        )
        for field in fields
        if isinstance(field.target, ast.Name)
    }


def _flow(value: Any) -> str:
    """The value as YAML on one line."""
    if isinstance(value, str | Mapping | list | tuple):
        text = yaml.safe_dump(to_plain(value), default_flow_style=True, width=10_000)
    else:
        text = yaml.safe_dump(value, width=10_000)
    return str(text).removesuffix("\n").removesuffix("\n...")
