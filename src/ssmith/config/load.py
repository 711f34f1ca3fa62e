"""Settings from plain dictionaries, TOML files and flags; an unknown key is an error."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from ssmith.config.schema import Recipe, nearest

T = TypeVar("T")
RECIPES = Path(__file__).parent / "recipes"


def from_dict(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Builds the frozen dataclass `cls` from nested dictionaries.

    Raises:
        ValueError: an unknown key (the message names the nearest one), a missing one, or a value of the
            wrong type.
    """
    hints = typing.get_type_hints(cls)
    arguments = {}
    for key, value in values.items():
        if key not in hints:
            raise ValueError(f"unknown setting {_dotted(where, key)!r}{nearest(key, hints)}")
        arguments[key] = _convert(hints[key], value, _dotted(where, key))
    missing = [
        f.name
        for f in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        if f.name not in arguments
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"missing setting {_dotted(where, missing[0])!r}")
    return cls(**arguments)


def to_dict(config: Any) -> dict[str, Any]:
    """The settings as nested dictionaries of plain values; tuples become lists."""
    return {k: _plain(v) for k, v in dataclasses.asdict(config).items()}


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, dictionary by dictionary."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def recipe_names() -> list[str]:
    """The recipes that ship."""
    return sorted(p.stem for p in RECIPES.glob("*.toml"))


def read_recipe_values(name_or_path: str) -> dict[str, Any]:
    """The values in a recipe that ships, by its name, or in a TOML file."""
    path = RECIPES / f"{name_or_path}.toml"
    if not path.is_file():
        path = Path(name_or_path)
        if path.suffix != ".toml":
            raise ValueError(f"there is no recipe {name_or_path!r}{nearest(name_or_path, recipe_names())}")
        if not path.is_file():
            raise ValueError(f"there is no recipe file {name_or_path}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error


def load_recipe(name_or_path: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by name or file, with `changes` (nested dictionaries) laid over it."""
    return from_dict(Recipe, merge(read_recipe_values(name_or_path), changes or {}))


def to_toml(config: Any) -> str:
    """The settings as TOML text. None has no form in TOML: such settings are left out."""
    return tomli_w.dumps(_without_none(to_dict(config)))


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, Mapping) else v for k, v in values.items() if v is not None}


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"setting {where!r} must be a table of settings, got {value!r}")
        return from_dict(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"setting {where!r} must be a list, got {value!r}")
        return tuple(value)
    # bool is an int to Python, not to a reader of settings; a whole number may stand for a float
    fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not fits:
        raise ValueError(f"setting {where!r} must be {hint.__name__}, got {value!r}")
    return value


def _convert_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    real = [c for c in choices if c is not type(None)]
    for choice in real:
        try:
            return _convert(choice, value, where)
        except ValueError:
            if choice is real[-1]:
                raise
    raise AssertionError("unreachable")
