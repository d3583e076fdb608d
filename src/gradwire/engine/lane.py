"""Lane: where buckets are encoded and decoded, beside the user's computation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

Entry = Callable[[], AbstractContextManager[object]]
"""Makes a context in which work waits for a bucket and runs beside everything else."""


class Lane:
    """A stream of its own on a GPU; on a CPU the engine's thread is enough.

    Args:
        device: Where gradients live.

    Example:
        >>> entry = Lane(torch.device("cpu")).fork(torch.ones(3))
        >>> with entry():
        ...     torch.ones(3).sum().item()
        3.0
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fork(self, buffer: Tensor) -> Entry:
        """Return the way into this lane, after all that was queued for `buffer` so far.

        Called on the thread whose current stream has filled the buffer.
        """
        stream = self._stream
        if stream is None:
            return nullcontext
        ready = torch.cuda.current_stream(self.device).record_event()
        buffer.record_stream(stream)  # it must not be reused before the lane is through

        def enter() -> AbstractContextManager[object]:
            stream.wait_event(ready)
            return torch.cuda.stream(stream)

        return enter
