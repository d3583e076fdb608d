"""Names to classes, open to other packages through entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from gradwire.errors import SpecError, UnknownIdError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps an id to a value; a second claim on an id is refused.

    Other packages add values through entry points of the group
    `gradwire.<kind>`, loaded on the first unknown id.

    Args:
        kind: What the values are, in the plural for the entry-point group.

    Example:
        >>> colours = Registry("colours")
        >>> _ = colours.register("red")("#f00")
        >>> colours["red"], list(colours)
        ('#f00', ['red'])
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._values: dict[str, T] = {}
        self._loaded = False

    def register(self, key: str) -> Callable[[T], T]:
        """Return a decorator that claims `key`.

        Raises:
            SpecError: The id is taken.
        """

        def claim(value: T) -> T:
            if key in self._values:
                raise SpecError(f"{self.kind} id", key, f"free: {self._values[key]!r} has it")
            self._values[key] = value
            return value

        return claim

    def __getitem__(self, key: str) -> T:
        if key not in self._values:
            self._load_entry_points()
        if key not in self._values:
            raise UnknownIdError(self.kind, key, sorted(self._values))
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def _load_entry_points(self) -> None:
        if not self._loaded:
            self._loaded = True
            for entry in entry_points(group=f"gradwire.{self.kind}"):
                if entry.name not in self._values:
                    self.register(entry.name)(entry.load())
