"""Plays a rate script on a network while its workers run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gradwire.lab.script import RateChange, RateScript


class Playback:
    """A thread that makes the changes of a script; a context manager.

    The script's clock starts with the block. At its end what is left of the
    script is dropped; the rates stay as they are.

    Attributes:
        made: Changes made so far, each with the `time.monotonic()` at which it
            had been made.

    Example:
        >>> with Playback(RateScript.parse("0s 1Gbit/s"), lambda change: None) as playback:
        ...     playback.finish()
        >>> len(playback.made)
        1
    """

    def __init__(self, script: RateScript, make: Callable[[RateChange], None]) -> None:
        self.made: list[tuple[float, RateChange]] = []
        self._script = script
        self._make = make
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="gradwire-lab-rates")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def finish(self) -> None:
        """Wait until the last change has been made.

        Raises:
            CommandError: A change could not be made.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        start = time.monotonic()
        try:
            for change in self._script.changes:
                if self._is_over.wait(max(0.0, start + change.at_s - time.monotonic())):
                    return
                self._make(change)
                self.made.append((time.monotonic(), change))
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            self._error = error
