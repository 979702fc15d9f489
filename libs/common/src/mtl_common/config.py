"""Settings: frozen models, resolved from defaults, a preset, a TOML file, options and `--set key=value`.

Every value is known with where it came from, so that an error names the dotted key, its source and the
nearest right name. Leaves out environment variables on purpose: what a run does is told by its file and its
command line.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from mtl_common.errors import ConfigError


class Settings(BaseModel):
    """The base of every group of settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _number_is_no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        # bool is an int to Python, so `seq = true` would quietly be 1
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float):
            raise ValueError("it should be a number")
        return value


S = TypeVar("S", bound=Settings)
Key = tuple[str, ...]
WORDS = {  # pydantic's for what TOML has
    "a valid dictionary": "a table",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid string": "a string",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "True": "true",
    "False": "false",
}


def nearest(name: str, choices: Iterable[str]) -> str:
    """The hint ` (did you mean "x"?)` for a name that is close to a choice, else nothing.

    >>> nearest("micro-bach", ["micro_batch", "seq"])
    ' (did you mean "micro_batch"?)'
    """
    plain = {choice.lower().replace("_", "-"): choice for choice in choices}
    close = get_close_matches(name.lower().replace("_", "-"), plain, n=1)
    return f' (did you mean "{plain[close[0]]}"?)' if close else ""


def _literal(text: str) -> Any:
    """Reads a TOML value; what is none is the bare string it looks like."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"no settings file {file}; check the path given to --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{file} cannot be read as TOML: {error}") from None


def _nest(key: Key, value: Any) -> dict[str, Any]:
    return {key[0]: _nest(key[1:], value) if key[1:] else value}


def _parse_sets(sets: Iterable[str]) -> dict[str, Any]:
    """`["a.b=1", "c=x"]` -> `{"a": {"b": 1}, "c": "x"}`."""
    found: dict[Key, Any] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        key = tuple(name.strip().split("."))
        if not equals or not all(key):
            raise ConfigError(f'--set takes section.key=value, not "{text}"')
        if key in found:
            raise ConfigError(f"--set gives {name.strip()} twice; keep one")
        found[key] = _literal(value.strip())
    nested: dict[str, Any] = {}
    for key, value in found.items():
        _merge(nested, _nest(key, value), "--set", {})
    return nested


def _merge(
    into: dict[str, Any], more: Mapping[str, Any], origin: str, origins: dict[Key, str], at: Key = ()
) -> None:
    """Lays `more` over `into`, leaf by leaf, and notes the origin of every key."""
    for name, value in more.items():
        key = (*at, name)
        origins[key] = origin
        if isinstance(value, Mapping):
            inner = into.get(name)
            into[name] = inner = inner if isinstance(inner, dict) else {}
            _merge(inner, value, origin, origins, key)
        else:
            into[name] = value


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: _without_none(v) if isinstance(v, Mapping) else v for k, v in options.items()}
    return {k: v for k, v in kept.items() if v is not None and v != {}}


def _section(model: type[BaseModel], key: Key) -> type[BaseModel] | None:
    """The settings class that a path of section names leads to."""
    section: Any = model
    for name in key:
        field = section.model_fields.get(name)
        section = field.annotation if field else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
    return section  # type: ignore[no-any-return]


def _first(model: type[BaseModel], errors: Sequence[ErrorDetails]) -> tuple[Key, Sequence[ErrorDetails]]:
    """The key of the first problem, and its errors: one for each kind that a value may be of and is not."""
    key = tuple(map(str, errors[0]["loc"]))
    if len(key) > 1 and _section(model, key[:-1]) is None:
        alike = [one for one in errors if one["loc"][:-1] == errors[0]["loc"][:-1]]
        if len(alike) > 1 and all(one["input"] == errors[0]["input"] for one in alike):
            return key[:-1], alike
    return key, errors[:1]


def _rule(errors: Sequence[ErrorDetails]) -> str:
    """What a value should be, in the words of TOML; one of several kinds has an error for each."""
    rules = [error["msg"].removeprefix("Value error, ").replace("Input should be", "") for error in errors]
    told = " or ".join(rule.strip() for rule in rules)
    for word, ours in WORDS.items():
        told = told.replace(word, ours)
    return f"it should be {told}" if "Input should be" in errors[0]["msg"] else told


def _told(model: type[BaseModel], errors: Sequence[ErrorDetails], origins: Mapping[Key, str]) -> str:
    """One sentence for the first problem that pydantic found."""
    key, errors = _first(model, errors)
    error = errors[0]
    name = ".".join(key)
    origin = next((origins[key[:n]] for n in range(len(key), 0, -1) if key[:n] in origins), "")
    where = f" in {origin}" if origin else ""
    section = _section(model, key[:-1]) if key else None
    if error["type"] == "extra_forbidden" and section:
        return f"unknown key {name}{where}{nearest(key[-1], section.model_fields)}"
    if error["type"] == "missing":
        return f"{name} has no value; set it in the file or with --set {name}=VALUE"
    if error["type"] == "model_type":
        return f"{name} is a section{where}; set its keys one by one, as {name}.KEY"
    return f"{name} is {json.dumps(error['input'], default=str)}{where}; {_rule(errors)}"


def validate(model: type[S], values: Mapping[str, Any], origins: Mapping[Key, str] | None = None) -> S:
    """Builds settings from nested values; raises ConfigError about the first key that is unknown or wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_told(model, error.errors(), origins or {})) from None


def resolve(
    model: type[S],
    *,
    preset: Mapping[str, Any] | None = None,
    file: Path | None = None,
    options: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
) -> S:
    """Merges nested settings, later ones winning: defaults, preset, TOML file, options, `key=value` sets.

    None in `options` means "not typed". Values of `sets` are TOML literals; a bare word is a string.
    Raises ConfigError for an unknown key (with the nearest name) or a wrong value, naming its source.
    """
    values: dict[str, Any] = {}
    origins: dict[Key, str] = {}
    _merge(values, preset or {}, "the preset", origins)
    if file:
        _merge(values, _read(file), str(file), origins)
    _merge(values, _without_none(options or {}), "the options", origins)
    _merge(values, _parse_sets(sets), "--set", origins)
    return validate(model, values, origins)


def changed(settings: BaseModel) -> dict[str, Any]:
    """Dotted key -> value, for every setting that is not its default; one without a default always counts."""
    return dict(_differences(settings, None, ()))


def _differences(settings: BaseModel, default: Any, at: Key) -> Iterator[tuple[str, Any]]:
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        usual = (
            getattr(default, name) if default is not None else field.get_default(call_default_factory=True)
        )
        if isinstance(value, BaseModel):
            yield from _differences(value, usual if type(usual) is type(value) else None, (*at, name))
        elif value != usual:
            yield ".".join((*at, name)), value


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_name(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _name(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _tables(values: Mapping[str, Any], at: Key) -> Iterator[str]:
    inner = {k: v for k, v in values.items() if isinstance(v, dict)}
    leaves = [f"{_name(k)} = {_value(v)}" for k, v in values.items() if k not in inner and v is not None]
    if leaves or (at and not inner):
        yield "\n".join([f"[{'.'.join(map(_name, at))}]"] * bool(at) + leaves) + "\n"
    for name, table in inner.items():
        yield from _tables(table, (*at, name))


def to_toml(settings: BaseModel) -> str:
    """The settings as TOML text that `resolve` reads back; what is None is left out."""
    return "\n".join(_tables(settings.model_dump(mode="json"), ()))
