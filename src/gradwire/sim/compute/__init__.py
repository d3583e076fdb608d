"""How long layers take on devices that need not be here."""

from __future__ import annotations

from gradwire.sim.compute.base import ComputeModel, workload
from gradwire.sim.compute.roofline import DEVICES, Roofline, find_device
from gradwire.sim.compute.systolic import SystolicArray

__all__ = ["DEVICES", "ComputeModel", "Roofline", "SystolicArray", "find_device", "workload"]
