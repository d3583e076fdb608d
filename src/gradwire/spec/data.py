"""Specs as JSON-ready data, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gradwire.errors import SpecError
from gradwire.registry import Registry
from gradwire.spec.base import CODEC_SPECS, REDUCER_SPECS, CodecSpec, ReducerSpec


def to_dict(spec: CodecSpec | ReducerSpec) -> dict[str, Any]:
    """Turn a spec into JSON-ready data.

    Example:
        >>> from gradwire.spec import AllReduce
        >>> to_dict(AllReduce("bfloat16"))
        {'id': 'all_reduce', 'format': 'bfloat16'}
    """
    out: dict[str, Any] = {"id": spec.id}
    for field in fields(spec):  # type: ignore[arg-type]
        out[field.name] = _plain(getattr(spec, field.name))
    return out


def _plain(value: object) -> object:
    if isinstance(value, CodecSpec):
        return to_dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def reducer_from_dict(data: dict[str, Any]) -> ReducerSpec:
    """Build a reducer spec from `to_dict`'s data.

    Raises:
        SpecError: A field is missing, unknown or out of range.
        UnknownIdError: No such codec or reducer.

    Example:
        >>> reducer_from_dict({"id": "low_rank", "matrix_rank": 2})
        LowRank(matrix_rank=2, warm_start=True, feedback=True)
    """
    spec: ReducerSpec = _from_dict(REDUCER_SPECS, data)
    return spec


def _from_dict(registry: Registry[type[Any]], data: dict[str, Any]) -> Any:  # noqa: ANN401 - the registry's type
    if not isinstance(data, dict) or "id" not in data:
        raise SpecError("spec", data, 'an object with an "id"')
    cls = registry[str(data["id"])]
    names = {field.name for field in fields(cls)}
    values = {k: v for k, v in data.items() if k != "id"}
    unknown = sorted(set(values) - names)
    if unknown:
        raise SpecError(f"{cls.__name__} field", unknown[0], "one of: " + ", ".join(sorted(names)))
    for name in ("codec", "second"):
        if values.get(name) is not None:
            values[name] = _from_dict(CODEC_SPECS, values[name])
    if isinstance(values.get("senders"), list):
        values["senders"] = tuple(_from_dict(CODEC_SPECS, v) for v in values["senders"])
    try:
        return cls(**values)
    except TypeError as error:
        raise SpecError(cls.__name__, values, f"complete: {error}") from None
