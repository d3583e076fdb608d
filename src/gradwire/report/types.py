"""Results from files: every field of the type it is declared with."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gradwire.errors import SpecError
from gradwire.timeline import Timeline


def check_types(thing: object) -> None:
    """Refuse a dataclass with a field of another type, however deep in it.

    Looks into tuples and dataclasses; what a mapping holds is not looked at.

    Args:
        thing: What was read from a file.

    Raises:
        SpecError: Names the field.

    Example:
        >>> from gradwire.report.model import Validation
        >>> check_types(Validation(1, 0.5, 1))
        >>> try:
        ...     check_types(Validation(1, "low", 1.0))
        ... except SpecError as error:
        ...     print(error)
        Validation.loss='low' is not float
    """
    kind: Any = type(thing)
    for name, allowed in _hints(kind).items():
        value = getattr(thing, name)
        if not any(_is_of(value, hint) for hint in allowed):
            words = " or ".join(_words(hint) for hint in allowed)
            raise SpecError(f"{kind.__name__}.{name}", value, words)
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part) and not isinstance(part, Timeline):
                check_types(part)


@cache
def _hints(kind: type) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(kind)
    return {
        name: get_args(hint) if get_origin(hint) is UnionType else (hint,)
        for name, hint in hints.items()
    }


def _is_of(value: object, hint: Any) -> bool:  # noqa: ANN401 - a type, or a form of typing
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _words(hint: Any) -> str:  # noqa: ANN401 - a type, or a form of typing
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if hint is type(None):
        return "null"
    return str(getattr(get_origin(hint) or hint, "__name__", hint))
