"""How much compression slows a backward pass that runs beside it (chi)."""

from __future__ import annotations

import threading
from statistics import median

import torch

import gradwire.codecs
from gradwire.codecs.base import Segments
from gradwire.key import Key
from gradwire.measure.timing import elapsed_s, median_s
from gradwire.spec import Quantize

_WIDTH = 512
_NUMEL = 1 << 20


def measure_interference(device: torch.device, budget_s: float = 1.0) -> float:
    """Return the share of compression time by which backward becomes longer.

    A small network runs backward by itself, then beside a thread that encodes
    without pause. What backward takes longer is divided by the time that the
    encodings done meanwhile take alone: 0 where they have a core or a
    stream of their own, 1 where both take turns.

    Args:
        device: Where gradients live.
        budget_s: Time for the whole measurement, about.

    Returns:
        chi, 0 to 1.
    """
    step = _Backward(device)
    encoder = _Encoder(device)
    encode_s = median_s(encoder.encode, device, budget_s / 8)
    alone_s = median_s(step.run, device, budget_s / 4)
    repeats = max(3, int(budget_s / 2 / alone_s))
    with encoder:
        step.run()
        before = encoder.done
        times = [elapsed_s(step.run, device) for _ in range(repeats)]
        encodings = encoder.done - before
    beside_s = median(times)  # a mean would count what other processes did meanwhile
    return share(alone_s, beside_s, encodings * encode_s * beside_s / sum(times))


def share(alone_s: float, beside_s: float, encoded_s: float) -> float:
    """Return what backward lost over what the encoder did, 0 to 1.

    Example:
        >>> share(1.0, 1.5, 1.0), share(1.0, 0.9, 1.0), share(1.0, 1.5, 0.0)
        (0.5, 0.0, 1.0)
    """
    if encoded_s <= 0:
        return 1.0
    return round(min(1.0, max(0.0, (beside_s - alone_s) / encoded_s)), 3)


class _Backward:
    """Two layers, whose backward pass is two thirds of a step."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (_WIDTH, _WIDTH)
        self._weights = [torch.randn(shape, generator=generator).to(device) for _ in range(2)]
        self._x = torch.randn(shape, generator=generator).to(device)

    def run(self) -> None:
        weights = [w.detach().requires_grad_() for w in self._weights]
        hidden = torch.relu(self._x @ weights[0]) @ weights[1]
        torch.autograd.grad(hidden.square().mean(), weights)


class _Encoder:
    """A thread that encodes until it is told to stop."""

    def __init__(self, device: torch.device) -> None:
        self._codec = gradwire.codecs.build(Quantize(4))
        self._x = torch.ones(_NUMEL, device=device)
        self._residual = torch.zeros_like(self._x)
        self._whole = Segments.whole(_NUMEL)
        self._device = device
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwire-chi", daemon=True)
        self.done = 0

    def encode(self) -> None:
        self._codec.encode(self._x, self._whole, Key(0, 0, 0), self._residual)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        is_gpu = self._device.type == "cuda"
        stream = torch.cuda.Stream(self._device) if is_gpu else None  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.stream(stream):
            while not self._is_over.is_set():
                self.encode()
                if stream is not None:
                    stream.synchronize()
                self.done += 1
