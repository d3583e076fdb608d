"""Simulates training steps on clusters of any size, without torch."""

from gradwire.sim.base import (
    COLLECTIVES,
    DISTRIBUTIONS,
    ENGINES,
    TOPOLOGIES,
    Cluster,
    Collective,
    Distribution,
    Engine,
    Simulation,
    Simulator,
    Straggler,
    Topology,
    Trace,
)
from gradwire.sim.crowd import crowded
from gradwire.sim.run import EventSimulator, simulate

__all__ = [
    "COLLECTIVES",
    "DISTRIBUTIONS",
    "ENGINES",
    "TOPOLOGIES",
    "Cluster",
    "Collective",
    "Distribution",
    "Engine",
    "EventSimulator",
    "Simulation",
    "Simulator",
    "Straggler",
    "Topology",
    "Trace",
    "crowded",
    "simulate",
]
