"""Levels: how many ranks share a node, as a device mesh or torchrun says."""

from __future__ import annotations

import os
from dataclasses import replace

from torch.distributed.device_mesh import DeviceMesh

from gradwire.errors import SpecError
from gradwire.plan import Plan, Rule
from gradwire.spec import Hierarchical

_VARIABLE = "LOCAL_WORLD_SIZE"
_TWO_LEVELS = 2


def with_levels(plan: Plan, mesh: DeviceMesh | None) -> Plan:
    """Fill in how many ranks share a node, where a plan leaves it open.

    Args:
        plan: Its hierarchical reducers may say `ranks_per_node=None`.
        mesh: Nodes by ranks of a node; None to read `LOCAL_WORLD_SIZE`, which
            torchrun sets.

    Raises:
        SpecError: Nobody says it, the mesh is of another form, or it
            contradicts the plan.

    Example:
        >>> os.environ["LOCAL_WORLD_SIZE"] = "4"
        >>> with_levels(Plan.of("int4@hierarchical"), None).rules[0].reducer.ranks_per_node
        4
        >>> del os.environ["LOCAL_WORLD_SIZE"]
    """
    rules = tuple(_with_level(rule, mesh) for rule in plan.rules)
    return plan if rules == plan.rules else replace(plan, rules=rules)


def _with_level(rule: Rule, mesh: DeviceMesh | None) -> Rule:
    reducer = rule.reducer
    if not isinstance(reducer, Hierarchical):
        return rule
    known = reducer.ranks_per_node
    found = _of_mesh(mesh) if mesh is not None else known or _of_environment()
    if known is not None and known != found:
        raise SpecError("Hierarchical.ranks_per_node", known, f"{found}, as the mesh says")
    return replace(rule, reducer=replace(reducer, ranks_per_node=found))


def _of_mesh(mesh: DeviceMesh) -> int:
    """Return the size of a node in a mesh of `[nodes, ranks of a node]`."""
    ranks = mesh.mesh
    if ranks.ndim != _TWO_LEVELS or ranks.flatten().tolist() != list(range(ranks.numel())):
        allowed = "two dimensions, nodes by ranks of a node, numbered one node after the other"
        raise SpecError("mesh", ranks.tolist(), allowed)
    return int(ranks.shape[1])


def _of_environment() -> int:
    text = os.environ.get(_VARIABLE, "")
    if not text.isdecimal() or int(text) < 1:
        allowed = (
            "a number of ranks: start with torchrun, which sets it, pass attach(mesh=...),"
            " or name the number, as in int4@hierarchical:8"
        )
        raise SpecError(_VARIABLE, text, allowed)
    return int(text)
