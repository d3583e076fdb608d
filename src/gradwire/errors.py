"""Every exception gradwire raises on purpose.

The split answers who is to blame: the caller (`SpecError`, `CommandError`),
the data (`PayloadError`), this machine (`BackendError`), the peers
(`CollectiveError`) or a checkpoint (`StateError`).
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from typing import Any


class GradwireError(Exception):
    """Base of all errors gradwire raises on purpose.

    Example:
        >>> issubclass(SpecError, GradwireError)
        True
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from their message, which is not what ours are made from.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class SpecError(GradwireError, ValueError):
    """A spec, plan or file asks for what cannot exist.

    Example:
        >>> str(SpecError("Quantize.bits", 9, "between 1 and 8"))
        'Quantize.bits=9 is not between 1 and 8'
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}={value!r} is not {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class UnknownIdError(SpecError):
    """No codec, reducer, task or command has this name.

    Example:
        >>> str(UnknownIdError("codec", "int9", ["int4", "int8"]))
        "codec='int9' is not one of: int4, int8"
    """

    def __init__(self, kind: str, unknown: str, known: Sequence[str]) -> None:
        super().__init__(kind, unknown, "one of: " + ", ".join(known))
        self.id = unknown
        self.known = tuple(known)


class PayloadError(GradwireError, ValueError):
    """Bytes do not match the spec they claim to follow.

    Example:
        >>> str(PayloadError("Quantize", expected_bytes=32, actual_bytes=31))
        'Quantize: payload of 31 bytes where 32 bytes are expected'
    """

    def __init__(self, what: str, *, expected_bytes: int, actual_bytes: int) -> None:
        super().__init__(
            f"{what}: payload of {actual_bytes} bytes where {expected_bytes} bytes are expected"
        )
        self.expected_bytes = expected_bytes
        self.actual_bytes = actual_bytes


class BackendError(GradwireError, RuntimeError):
    """A back end that was asked for by name cannot run here.

    You do not get it when the choice is automatic: then the reference runs
    and `gradwire doctor` says why.

    Example:
        >>> str(BackendError("quantize_encode", "native", "no library was built"))
        "back end 'native' cannot run quantize_encode: no library was built"
    """

    def __init__(self, op: str, backend: str, reason: str) -> None:
        super().__init__(f"back end {backend!r} cannot run {op}: {reason}")
        self.op = op
        self.backend = backend
        self.reason = reason


class CollectiveError(GradwireError, RuntimeError):
    """A transfer failed or timed out; the cause is chained.

    Example:
        >>> str(CollectiveError("all_to_all", 1, "step 3: peer gone"))
        'all_to_all failed on rank 1: step 3: peer gone'
    """

    def __init__(self, op: str, rank: int, detail: str) -> None:
        super().__init__(f"{op} failed on rank {rank}: {detail}")
        self.op = op
        self.rank = rank
        self.detail = detail


class RankMismatchError(CollectiveError):
    """Ranks disagree on plan, parameters or results.

    Example:
        >>> str(RankMismatchError("attach", 0, "plans differ", {0: "aa", 1: "bb"}))
        'attach failed on rank 0: plans differ'
    """

    def __init__(self, op: str, rank: int, detail: str, digests: Mapping[int, str]) -> None:
        super().__init__(op, rank, detail)
        self.digests = dict(digests)


class StateError(GradwireError, RuntimeError):
    """A checkpoint does not fit this plan, model, rank or world size.

    Example:
        >>> StateError("no state of rank 1", missing=["rank1"]).missing
        ('rank1',)
    """

    def __init__(
        self, message: str, *, missing: Sequence[str] = (), unexpected: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)


class CommandError(GradwireError):
    """A mistake on the command line; printed in one line, never as a traceback.

    Example:
        >>> CommandError("no such task", exit_code=2).exit_code
        2
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
