"""Wraps a model for one mode of the bench."""

from __future__ import annotations

import torch
from torch import nn

import gradwire
from gradwire.bench.packages import wrap_package
from gradwire.comm.shaped import Link
from gradwire.demo import exchange
from gradwire.demo.exchange import Exchange
from gradwire.demo.settings import Method
from gradwire.engine.overlap import Overlap


def wrap(
    mode: Method, module: nn.Module, optimiser: torch.optim.Optimizer, link: Link | None
) -> Exchange:
    """Wrap a model so that its gradients are exchanged as a mode does.

    Args:
        mode: From `modes.parse_mode`.
        module: The model; equal on all ranks.
        optimiser: What updates it.
        link: The link to imitate; None leaves it to the network.
    """
    match mode.hook:
        case "nosync":
            return Exchange(module, lambda: 0)
        case "overlap":
            return _overlap(gradwire.overlap(module, optimiser, mode.plan, link=link), module)
        case "torchft" | "hivemind":
            return wrap_package(mode.hook, module, link)
        case _:
            return exchange.wrap(mode, module, link)


def _overlap(engine: Overlap, module: nn.Module) -> Exchange:
    """Wrap the engine; a step of its stats ends with the forward of the next one."""

    def sent_bytes() -> int:
        recent = engine.stats().recent
        return recent[-1].sent_bytes if recent else 0

    def waits() -> tuple[float, float]:
        recent = engine.stats().recent
        return (recent[-1].wait_s, recent[-1].overlap_s) if recent else (0.0, 0.0)

    return Exchange(module, sent_bytes, engine.close, wait=engine.synchronize, waits=waits)
