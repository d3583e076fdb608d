"""Options of `gradwire simulate` that describe the cluster of one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from gradwire.errors import CommandError

if TYPE_CHECKING:
    from gradwire.sim.base import Cluster, Distribution, Straggler, Trace
    from gradwire.sim.sweep import Grid

ONE_STEP = {
    "nodes": "--nodes",
    "bucket": "--bucket",
    "oversubscription": "--oversubscription",
    "nodes_per_leaf": "--nodes-per-leaf",
    "multicast": "--multicast",
    "stragglers": "--straggler",
    "traces": "--bandwidth-trace",
}
"""Options that a sweep does not take."""


def parse_cluster(options: Mapping[str, Any], grid: Grid) -> Cluster:
    """Read the cluster of one step.

    Args:
        options: Of the command.
        grid: What one step and a sweep have in common.

    Raises:
        CommandError: An option that is not understood, or does not go with
            another one.
        SpecError: A value that a cluster refuses.
    """
    from gradwire.sim.base import Cluster  # noqa: PLC0415 - keeps the start of the command fast

    if options["nodes"] is not None and options["ranks"] is not None:
        raise CommandError("--nodes takes the place of --ranks: give one", exit_code=2)
    tree = {name: options[name] for name in ("oversubscription", "nodes_per_leaf")}
    tree = {name: value for name, value in tree.items() if value is not None}
    if tree and grid.topology != "tree":
        raise CommandError(f"{ONE_STEP[next(iter(tree))]} needs --topology tree", exit_code=2)
    each = grid.ranks_per_node
    ranks = grid.ranks[0] if options["nodes"] is None else options["nodes"] * each
    is_multicast = options["multicast"] or grid.collective == "multicast"
    return Cluster(
        ranks,
        each,
        grid.topology,
        is_multicast=is_multicast,
        traces=_traces(options["traces"], max(1, ranks // each)),
        stragglers=tuple(map(_straggler, options["stragglers"])),
        seed=options["seed"],
        **tree,
    )


def _straggler(text: str) -> Straggler:
    from gradwire.sim.base import Straggler  # noqa: PLC0415

    distribution, *rest = text.split(":")
    try:
        scale, ranks = float(rest[0]), rest[1].split("+") if len(rest) > 1 else []
        numbers = tuple(map(int, ranks))
    except (IndexError, ValueError):
        remedy = "such as normal:0.1, or constant:0.5:3 for rank 3"
        raise CommandError(
            f"--straggler {text}: DISTRIBUTION:SCALE[:RANKS], {remedy}", exit_code=2
        ) from None
    return Straggler(cast("Distribution", distribution), scale, numbers)


def _traces(texts: tuple[str, ...], nodes: int) -> dict[int, Trace]:
    from gradwire.sim.base import Trace  # noqa: PLC0415
    from gradwire.units import parse_rate, parse_seconds  # noqa: PLC0415

    traces: dict[int, Trace] = {}
    for text in texts:
        node, colon, changes = text.rpartition(":")
        if colon and not node.isdecimal():
            raise CommandError(
                f"--bandwidth-trace {text}: {node!r} is no node's number", exit_code=2
            )
        pairs = [change.partition("=") for change in changes.split(",")]
        if not all(equals for _, equals, _ in pairs):
            message = f"--bandwidth-trace {text}: TIME=RATE, such as 0s=1Gbit/s,50ms=100Mbit/s"
            raise CommandError(message, exit_code=2)
        trace = Trace(
            tuple(parse_seconds(time) for time, _, _ in pairs),
            tuple(parse_rate(rate) for _, _, rate in pairs),
        )
        traces.update(dict.fromkeys([int(node)] if colon else range(nodes), trace))
    return traces
