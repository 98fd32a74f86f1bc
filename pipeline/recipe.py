"""Recipes: YAML files and `key=value` overrides into frozen dataclasses.

A recipe may name another as its `base` and give only what differs. An overlay, such as `tiny`,
is a YAML file whose values go over those of any recipe. An unknown key is an error with the
nearest name; a value of the wrong type is an error with what was wanted.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from caption.config import TrainingConfig
from extract.cache import differences, flat
from extract.nearest import hint
from pipeline.errors import USER_ERRORS, PipelineError, WrongUsage

T = TypeVar("T")
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingConfig):
    """A training recipe: the captioner and how it is trained."""

    name: str = "recipe"  # what the recipe is called
    source: str = ""  # where the numbers come from
    model: Mapping[str, Any] = field(default_factory=dict)  # `name` and that model's own keys

    def model_config(self) -> Any:
        """The model's own configuration, checked."""
        from caption.registry import entry  # imports torch, which a list of recipes does without

        settings = dict(self.model)
        name = settings.pop("name", "transformer")
        return from_mapping(entry(name).config, settings, "model")

    def resolved(self) -> dict[str, Any]:
        """Every setting as plain values, those of the model with their defaults."""
        model = {"name": self.model_name(), **to_mapping(self.model_config())}
        return {**to_mapping(self), "model": model}

    def model_name(self) -> str:
        """The captioner's name in the registry."""
        return str(self.model.get("name", "transformer"))


def shipped() -> dict[str, Path]:
    """The recipes that come with the program: name -> file."""
    return _files("recipes")


def overlays() -> dict[str, Path]:
    """The overlays that come with the program: name -> file."""
    return _files("overlays")


def load(name_or_path: str, overrides: Sequence[str] = (), overlay: str | None = None) -> Recipe:
    """A recipe by name or file; an overlay, then `key=value` overrides go over its values.

    Raises WrongUsage for whatever is unknown or of a wrong type.
    """
    settings = read(name_or_path)
    where = f"recipe {name_or_path}"
    if overlay is not None:
        settings = merged(settings, read_yaml(_found("overlay", overlay, overlays())))
        settings["name"] = f"{settings.get('name', name_or_path)}+{Path(overlay).stem}"
        where += f" with overlay {overlay}"
    with as_typed():
        recipe = from_mapping(Recipe, apply(settings, overrides), where)
        recipe.model_config()
    return recipe


def read(name_or_path: str) -> dict[str, Any]:
    """The settings of a recipe, those of its bases underneath."""
    chain: list[dict[str, Any]] = []
    name: Any = name_or_path
    seen: list[str] = []
    while name is not None:
        if name in seen:
            raise WrongUsage(f"recipe {name_or_path}: its bases go round: {' > '.join(seen)}")
        seen.append(str(name))
        listing = "pipeline train --list-recipes"
        chain.append(read_yaml(_found("recipe", seen[-1], shipped(), listing)))
        name = chain[-1].pop("base", None)
    settings: dict[str, Any] = {}
    for layer in reversed(chain):
        settings = merged(settings, layer)
    return settings


def describe(name: str) -> str:
    """Where the numbers of a shipped recipe come from, in one line."""
    return str(read(name).get("source", ""))


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with those of `over` in place of those of `under`."""
    result = _copied(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else _copied(value)
    plain: dict[str, Any] = result
    return plain


def _files(kind: str) -> dict[str, Path]:
    folder = Path(str(resources.files("pipeline") / kind))
    return {
        str(path.relative_to(folder).with_suffix("")): path
        for path in sorted(folder.rglob("*.yaml"))
    }


def _found(
    what: str, name_or_path: str, known: Mapping[str, Path], listing: str | None = None
) -> Path:
    path = known.get(name_or_path, Path(name_or_path))
    if not path.is_file():
        near = hint(name_or_path, known, listing)
        raise WrongUsage(f"no {what} or YAML file {name_or_path!r}{near}")
    return path


@contextmanager
def as_typed() -> Iterator[None]:
    """Errors about names and values that were typed or written into a recipe are wrong usage."""
    try:
        yield
    except USER_ERRORS as error:
        raise WrongUsage(str(error)) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping. Raises PipelineError with file and line."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PipelineError(f"{path}: cannot be read as YAML ({error})") from error
    if not isinstance(content, dict):
        raise PipelineError(f"{path}: holds {content!r}, wanted `key: value` lines")
    return content


def apply(settings: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Settings with `a.b=value` overrides; values are read as YAML."""
    result = _copied(settings)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise PipelineError(f"-o {override}: wanted key=value, such as {_example(result, key)}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise PipelineError(f"-o {override}: the value is no YAML ({error})") from error
        *parents, last = key.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise PipelineError(f"-o {override}: {parent} is no group of settings")
        inner[last] = value
    return result


def _example(settings: Mapping[str, Any], typed: str) -> str:
    """A setting as it could be typed: the one meant where it is known, else one with a number."""
    known = {k: v for k, v in flat(settings).items() if isinstance(v, bool | int | float | str)}
    numbers = (k for k, v in known.items() if not isinstance(v, bool | str))
    key = typed if typed in known else next(numbers, "seed")
    return f"{key}={yaml.safe_dump(known.get(key, 1)).splitlines()[0]}"


def override(config: T, overrides: Sequence[str]) -> T:
    """A dataclass with `key=value` overrides, checked as `from_mapping` does."""
    with as_typed():
        settings = apply(to_mapping(config), overrides)
        return from_mapping(type(config), settings, "settings")


def from_mapping(kind: type[T], settings: Mapping[str, Any], where: str) -> T:
    """A dataclass of a mapping, nested ones too. `where` names the source in errors."""
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = {}
    for key, value in settings.items():
        if key not in names:
            raise PipelineError(f"{where}: unknown key {str(key)!r}{hint(key, names)}")
        values[key] = _value(hints[key], value, f"{where}: {key}")
    return kind(**values)


def to_mapping(config: Any) -> dict[str, Any]:
    """A dataclass as plain dicts and lists, for YAML and JSON."""
    plain: dict[str, Any] = to_plain(dataclasses.asdict(config))
    return plain


def to_plain(value: Any) -> Any:
    """The value with mappings as dicts and sequences as lists, for YAML and JSON."""
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    return value


def setting_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """One line per setting in which two nested settings differ: `key: value of a / of b`."""
    return differences(flat(a), flat(b))


def dump(settings: Mapping[str, Any]) -> str:
    """Settings as YAML text."""
    text: str = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    return text


def _value(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        kinds = get_args(hint)
        if value is None and type(None) in kinds:
            return None
        return _value(next(k for k in kinds if k is not type(None)), value, where)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise PipelineError(f"{where} is {value!r}, wanted a group of settings")
        return from_mapping(hint, value, where)  # type: ignore[arg-type]
    if origin is tuple:
        kinds = get_args(hint)
        items = _items(value)
        inner = [kinds[0]] * len(items) if kinds[-1] is Ellipsis else list(kinds)
        if len(inner) != len(items):
            raise PipelineError(f"{where} is {value!r}, wanted {len(inner)} values")
        return tuple(_value(k, item, where) for k, item in zip(inner, items, strict=True))
    if hint is float and isinstance(value, str):
        try:  # YAML reads 5e-6 as a word
            return float(value)
        except ValueError:
            raise PipelineError(f"{where} is {value!r}, wanted a number") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = origin or hint
    wanted: Any = Mapping if plain is Mapping else plain
    is_flag = isinstance(value, bool)
    if not isinstance(value, wanted) or (is_flag and wanted in (int, float)):
        name = _NAMES.get(plain) or getattr(plain, "__name__", str(plain))
        raise PipelineError(f"{where} is {value!r}, wanted {name}")
    return value


def _items(value: Any) -> Any:
    """The items of a list; `2,6` on a command line is one too, without the brackets."""
    if isinstance(value, str) and "," in value:
        try:
            return yaml.safe_load(f"[{value}]")
        except yaml.YAMLError:
            return [value]
    return value if isinstance(value, list | tuple) else [value]


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, Mapping) else value
