"""The installed version."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """Return gradwire's version, or say that it runs from its source.

    Example:
        >>> bool(installed_version())
        True
    """
    try:
        return metadata.version("gradwire")
    except metadata.PackageNotFoundError:
        return "run from source, not installed"
