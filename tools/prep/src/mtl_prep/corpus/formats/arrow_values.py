"""The values of Arrow's columns as JSON has them."""

import base64
from typing import Any


def _plain(kind: Any) -> Any:
    """The type to cast a type to, so that Python has its values: times and decimals as text."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_duration(kind):
        return pa.int64()
    if types.is_temporal(kind) or types.is_decimal(kind):
        return pa.string()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.large_list(_plain(kind.value_type))
    return kind


def _text(value: bytes) -> str:
    """Bytes as text; in base64 when they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _as_json(value: Any, kind: Any) -> Any:
    """A value of Python's as JSON has it."""
    import pyarrow.types as types

    if value is None:
        return None
    if types.is_map(kind):
        return {str(_as_json(k, kind.key_type)): _as_json(v, kind.item_type) for k, v in value}
    if types.is_struct(kind):
        return {field.name: _as_json(value[field.name], field.type) for field in kind}
    if types.is_large_list(kind):
        return [_as_json(one, kind.value_type) for one in value]
    if isinstance(value, bytes):
        return _text(value)
    return value if isinstance(value, str | int | float) else str(value)


def json_values(column: Any) -> list[Any]:
    """(rows,) the values of a column: numbers, strings, objects for structs and maps, lists.

    Times are text as in `2026-11-30 19:00:00`, decimals text, durations counts of their unit.
    """
    import pyarrow as pa
    import pyarrow.types as types

    kind = _plain(column.type)
    try:
        values = list(column.cast(kind).to_pylist())
    except UnicodeDecodeError:  # a string that is none
        kind = pa.large_binary()
        values = list(column.cast(kind).to_pylist())
    if types.is_primitive(kind) or types.is_string(kind):
        return values
    return [_as_json(value, kind) for value in values]
