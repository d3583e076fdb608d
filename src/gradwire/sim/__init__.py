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

__all__ = [
    "COLLECTIVES",
    "DISTRIBUTIONS",
    "ENGINES",
    "TOPOLOGIES",
    "Cluster",
    "Collective",
    "Distribution",
    "Engine",
    "Simulation",
    "Simulator",
    "Straggler",
    "Topology",
    "Trace",
]
