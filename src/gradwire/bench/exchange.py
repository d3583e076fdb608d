"""Wraps a model for one mode of the bench."""

from __future__ import annotations

import torch
from torch import nn

from gradwire.bench.packages import wrap_package
from gradwire.comm.shaped import Link
from gradwire.demo import exchange
from gradwire.demo.exchange import Exchange
from gradwire.demo.settings import Method


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
        case "torchft" | "hivemind":
            return wrap_package(mode.hook, module, link)
        case _:
            return exchange.wrap(mode, module, optimiser, link)
