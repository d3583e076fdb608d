"""Checks of the fields of specs, plans and links."""

from __future__ import annotations

from gradwire.errors import SpecError


def check_whole(field: str, value: int, least: int, most: int | None = None) -> None:
    """Make sure that a number is whole and within its limits.

    Raises:
        SpecError: It is not.

    Example:
        >>> check_whole("Plan.seed", 1.5, 0)
        Traceback (most recent call last):
        ...
        gradwire.errors.SpecError: Plan.seed=1.5 is not a whole number of at least 0
    """
    limits = f"of at least {least}" if most is None else f"between {least} and {most}"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value or (most is not None and value > most):
        raise SpecError(field, value, f"a whole number {limits}")


def check_number(field: str, value: float, allowed: str) -> None:
    """Make sure that a value is a number at all.

    Raises:
        SpecError: It is not.

    Example:
        >>> check_number("Link.latency_s", "1ms", "a finite number of at least 0")
        Traceback (most recent call last):
        ...
        gradwire.errors.SpecError: Link.latency_s='1ms' is not a finite number of at least 0
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise SpecError(field, value, allowed)


def check_switch(field: str, value: object) -> None:
    """Make sure that a value is True or False: a plan file's "false" counts as true.

    Raises:
        SpecError: It is neither.

    Example:
        >>> check_switch("TwoPhase.feedback", True)
    """
    if not isinstance(value, bool):
        raise SpecError(field, value, "True or False")
