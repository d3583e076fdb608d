"""Optimisers that exchange compressed momenta in place of gradients.

They own the exchange: give them the parameters of a plain module, the same on
every rank, and call `step` where you called it before. `AdamW` is the heir of
1-bit Adam and 0/1 Adam, `LAMB` that of 1-bit LAMB, over any plan.
"""

from __future__ import annotations

from gradwire.optim.adamw import AdamW
from gradwire.optim.lamb import LAMB

__all__ = ["LAMB", "AdamW"]
