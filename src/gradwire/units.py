"""Bytes, seconds and rates: parsing and formatting. SI prefixes only.

Everywhere else in gradwire a number carries its unit in its name (`_bytes`,
`_s`, `_bytes_per_s`); conversions happen only here.
"""

from __future__ import annotations

import math
import re

from gradwire.errors import SpecError

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
_MOST_DIGITS = 18
_RATE = re.compile(r"\s*([0-9.]+)\s*([kKMGT]?)(bit|b|B)(?:/s|ps)\s*")
_SIZE = re.compile(r"\s*([0-9.]+)\s*([kKMGT]?)(i?)B\s*")
_TIME = re.compile(r"\s*([0-9.]+)\s*(min|ms|us|µs|ns|s)\s*")


def parse_rate(text: str) -> float:
    """Read a link rate and return it in bytes per second.

    Args:
        text: A number and a unit: `"100Mbit/s"`, `"1Gbps"`, `"12.5MB/s"`, or
            `"unlimited"`.

    Returns:
        Bytes per second; infinity for `"unlimited"`.

    Raises:
        SpecError: The text is no rate, or the rate is not above 0.

    Example:
        >>> parse_rate("100Mbit/s")
        12500000.0
    """
    if text.strip() == "unlimited":
        return math.inf
    match = _RATE.fullmatch(text)
    value = _number(match.group(1)) if match else None
    if match is None or not value:
        raise SpecError("rate", text, 'a rate above 0, such as "100Mbit/s" or "unlimited"')
    bits = 8 if match.group(3) == "B" else 1
    prefix = match.group(2).replace("K", "k")
    return value * _PREFIXES[prefix] * bits / 8


def parse_bytes(text: str) -> int:
    """Read a size and return it in bytes.

    Args:
        text: A number and a unit: `"25MiB"`, `"1MB"`, `"512KiB"`, `"100B"`.

    Raises:
        SpecError: The text is no size, or the size is not above 0.

    Example:
        >>> parse_bytes("25MiB"), parse_bytes("1 MB")
        (26214400, 1000000)
    """
    match = _SIZE.fullmatch(text)
    value = _number(match.group(1)) if match else None
    if match is None or not value:
        raise SpecError("size", text, 'a size above 0, such as "25MiB"')
    unit = 1024 if match.group(3) else 1000
    power = " KMGT".index(match.group(2).upper() or " ")
    return round(value * float(unit**power))


def parse_seconds(text: str) -> float:
    """Read a duration and return it in seconds.

    Args:
        text: A number and a unit: `"20ms"`, `"1.5s"`, `"50us"`.

    Raises:
        SpecError: The text is no duration.

    Example:
        >>> parse_seconds("20ms")
        0.02
    """
    match = _TIME.fullmatch(text)
    value = _number(match.group(1)) if match else None
    if match is None or value is None:
        raise SpecError("duration", text, 'a duration, such as "20ms" or "1.5s"')
    return value * _SECONDS[match.group(2)]


def parse_whole(field: str, text: str) -> int:
    """Read a whole number of at most 18 digits.

    Args:
        field: What it is, for the message.
        text: Its digits.

    Raises:
        SpecError: The text is no such number.

    Example:
        >>> parse_whole("ranks", "8")
        8
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise SpecError(field, text, f"a whole number of up to {_MOST_DIGITS} digits")
    return int(text)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def format_bytes(num_bytes: float) -> str:
    """Write a size with three significant digits.

    Example:
        >>> format_bytes(43_750_000)
        '43.8 MB'
    """
    return _scaled(num_bytes, "B")


def format_rate(bytes_per_s: float) -> str:
    """Write a link rate in bits per second.

    Example:
        >>> format_rate(12_500_000)
        '100 Mbit/s'
    """
    return "unlimited" if math.isinf(bytes_per_s) else _scaled(bytes_per_s * 8, "bit/s")


def format_seconds(seconds: float) -> str:
    """Write a duration with three significant digits.

    Example:
        >>> format_seconds(0.0425)
        '42.5 ms'
    """
    rounded = _rounded(seconds)
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(rounded) >= factor:
            return f"{_rounded(rounded / factor):g} {unit}"
    return "0 s" if seconds == 0 else f"{_rounded(seconds * 1e9):g} ns"


def _scaled(value: float, unit: str) -> str:
    rounded = _rounded(value)
    for prefix in ("T", "G", "M", "k"):
        if abs(rounded) >= _PREFIXES[prefix]:
            return f"{_rounded(rounded / _PREFIXES[prefix]):g} {prefix}{unit}"
    return f"{rounded:g} {unit}"


def _rounded(value: float) -> float:
    """Round to three significant digits, before a unit is chosen: 999.9 is 1000."""
    return float(f"{value:.3g}")
