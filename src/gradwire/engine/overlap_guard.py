"""Guard: waits with a limit, and breaks everything off once where that fails."""

from __future__ import annotations

import copy
from concurrent.futures import Future
from typing import TypeVar

from gradwire.comm.base import RankedMailbox
from gradwire.errors import CollectiveError, RankMismatchError

T = TypeVar("T")


class Guard:
    """Waits for what other ranks have a part in.

    Args:
        mailbox: Broken off where waiting fails, so that the others notice.

    Attributes:
        failure: What went wrong first.
        mismatch: What the ranks were found to differ in, by another thread.
    """

    def __init__(self, mailbox: RankedMailbox) -> None:
        self.failure: str | None = None
        self.mismatch: RankMismatchError | None = None
        self._mailbox = mailbox

    def check(self) -> None:
        """Refuse to go on after a failure.

        Raises:
            CollectiveError: There was one.
        """
        if self.failure is None and self.mismatch is not None:
            self.failure = str(self.mismatch)
            raise copy.copy(self.mismatch)
        if self.failure is not None:
            raise CollectiveError("overlap", self._mailbox.rank, f"already broken: {self.failure}")

    def wait(self, what: str, done: Future[T]) -> T:
        """Wait for an outcome, up to the time limit of the group.

        Raises:
            CollectiveError: It failed, or there was none; says `what`.
        """
        try:
            return done.result(self._mailbox.timeout_s)
        except Exception as told_error:
            error = self.mismatch or told_error  # what follows from it may be told first
            limit = f"nothing came within {self._mailbox.timeout_s:g} s"
            detail = f"{what}: {limit if isinstance(error, TimeoutError) else error}"
            self.failure = self.failure or detail
            if not isinstance(error, RankMismatchError):  # all ranks find that by themselves
                self._mailbox.fail(detail)
            if isinstance(error, CollectiveError):
                told = copy.copy(error)  # others may wait for the same future
                told.args = (f"{what}: {error}",)
                raise told from told_error
            raise CollectiveError("overlap", self._mailbox.rank, detail) from told_error
