"""Pilot: what chooses plans while training goes on, as the synchronizer sees it."""

from __future__ import annotations

from typing import Protocol

from gradwire.engine.scheme import Scheme
from gradwire.engine.stats import StepStats
from gradwire.engine.switch import Switch
from gradwire.plan import Plan
from gradwire.planner.choice import Choice


class Pilot(Protocol):
    """Chooses plans while training goes on."""

    @property
    def switch(self) -> Switch:
        """Carries the choices to all ranks."""

    @property
    def decision(self) -> Choice | None:
        """The last choice, and why."""

    def leaves(self, step: int, scheme: Scheme) -> bool:
        """Whether DDP is to average this step itself; equal on all ranks."""

    def note(self, stats: StepStats) -> None:
        """Take the statistics of a step, before the next one begins."""

    def resume(self, plan: Plan, step: int) -> None:
        """Go on from a checkpoint: with its plan, before this step."""
