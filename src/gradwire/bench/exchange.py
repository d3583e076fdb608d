"""Wraps a model for one mode of the bench."""

from __future__ import annotations

from torch import nn

from gradwire.comm.shaped import Link
from gradwire.demo import exchange
from gradwire.demo.exchange import Exchange
from gradwire.demo.settings import Method


def wrap(mode: Method, module: nn.Module, link: Link | None) -> Exchange:
    """Wrap a model so that its gradients are exchanged as a mode does.

    Args:
        mode: From `modes.parse_mode`.
        module: The model; equal on all ranks.
        link: The link to imitate; None leaves it to the network.
    """
    if mode.hook == "nosync":
        return Exchange(module, lambda: 0)
    return exchange.wrap(mode, module, link)
