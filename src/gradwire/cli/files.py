"""Files a command writes: checked before the work, never overwritten unasked."""

from __future__ import annotations

from pathlib import Path

from gradwire.errors import CommandError


def require_free(path: Path, *, force: bool) -> None:
    """Make the file's folder, and refuse what could not or must not be written.

    Args:
        path: The file to be written.
        force: Whether a file that is there may be overwritten.

    Raises:
        CommandError: It is a folder, its folder cannot be made, or it exists.
    """
    if path.is_dir():
        raise CommandError(f"{path} is a folder, not a file to write", exit_code=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}", exit_code=2) from None
    if path.exists() and not force:
        raise CommandError(f"{path} exists; --force overwrites it", exit_code=2)


def require_apart(*paths: Path | None) -> None:
    """Refuse one file for two outputs.

    Raises:
        CommandError: Two of the paths lead to the same file.
    """
    seen: set[Path] = set()
    for path in filter(None, paths):
        if path.resolve() in seen:
            raise CommandError(f"{path} cannot hold two outputs", exit_code=2)
        seen.add(path.resolve())


def write_file(path: Path, text: str) -> None:
    """Write a file, or leave none where there was none.

    Raises:
        CommandError: The system refuses.
    """
    is_new = not path.exists()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if is_new:  # half a file would be taken for a whole one
            path.unlink(missing_ok=True)
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None
