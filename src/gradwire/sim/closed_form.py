"""Times of collectives where nothing contends, as formulas.

Every message takes `latency_s + num_bytes / bandwidth_bytes_per_s`, and all
ranks begin at once, at a full-duplex switch. The event simulation gives the
same; where links are shared, only that is right.

Source: Thakur, Rabenseifner and Gropp, Optimization of collective
communication operations in MPICH, IJHPCA 19(1), 2005, and Patarasuk and Yuan,
JPDC 69(2), 2009, for the ring.
"""

from __future__ import annotations

import math

from gradwire.hardware import LinkSpeed


def message_s(num_bytes: float, link: LinkSpeed) -> float:
    """Return the time of one message.

    Example:
        >>> message_s(100.0, LinkSpeed(0.5, 100.0))
        1.5
    """
    return link.latency_s + num_bytes / link.bandwidth_bytes_per_s


def ring_all_reduce_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return `2 (N - 1)` messages of a chunk of each rank's tensor.

    Example:
        >>> ring_all_reduce_s(400.0, 4, LinkSpeed(0.5, 100.0))
        9.0
    """
    return 2 * ring_all_gather_s(num_bytes, ranks, link)


def ring_all_gather_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return `N - 1` messages of a chunk of the tensor; also a reduce-scatter.

    Example:
        >>> ring_all_gather_s(400.0, 4, LinkSpeed(0.5, 100.0))
        4.5
    """
    return (ranks - 1) * message_s(num_bytes / ranks, link)


def tree_broadcast_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return `ceil(log2 N)` messages of everything.

    Example:
        >>> tree_broadcast_s(100.0, 5, LinkSpeed(0.5, 100.0))
        4.5
    """
    return math.ceil(math.log2(ranks)) * message_s(num_bytes, link)


def tree_all_reduce_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return a reduction and a broadcast along a binomial tree, not pipelined.

    Example:
        >>> tree_all_reduce_s(100.0, 4, LinkSpeed(0.5, 100.0))
        6.0
    """
    return 2 * tree_broadcast_s(num_bytes, ranks, link)


def exchange_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return all-to-all of shards of a tensor, or all-gather of shards, directly.

    Example:
        >>> exchange_s(400.0, 4, LinkSpeed(0.5, 100.0))
        3.5
    """
    return message_s((ranks - 1) / ranks * num_bytes, link)


def two_phase_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return shards to their owners and means to all, without codecs.

    Example:
        >>> two_phase_s(400.0, 4, LinkSpeed(0.5, 100.0))
        7.0
    """
    return 2 * exchange_s(num_bytes, ranks, link)


def all_broadcast_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return everyone's payload to all others: limited by what arrives.

    Multicast saves what leaves, not what arrives.

    Example:
        >>> all_broadcast_s(100.0, 4, LinkSpeed(0.5, 100.0))
        3.5
    """
    return message_s((ranks - 1) * num_bytes, link)


def unicast_broadcast_s(num_bytes: float, ranks: int, link: LinkSpeed) -> float:
    """Return one rank's tensor to all others, each by a message of its own.

    Example:
        >>> unicast_broadcast_s(100.0, 4, LinkSpeed(0.5, 100.0))
        3.5
    """
    return message_s((ranks - 1) * num_bytes, link)


def chain_broadcast_s(num_bytes: float, ranks: int, link: LinkSpeed, chunks: int = 1) -> float:
    """Return one rank's tensor passed on from neighbour to neighbour in chunks.

    Example:
        >>> chain_broadcast_s(100.0, 4, LinkSpeed(0.0, 100.0), chunks=8)
        1.25
    """
    return (ranks - 2 + chunks) * message_s(num_bytes / chunks, link)


def hierarchical_s(
    num_bytes: float, shape: tuple[int, int], within: LinkSpeed, between: LinkSpeed
) -> float:
    """Return a sum within nodes, an exchange between them, and a gather within.

    Args:
        num_bytes: Of each rank's tensor.
        shape: Nodes, and ranks of each.
        within: Speed between ranks of a node.
        between: Speed of a node's interface, which its ranks share.

    Example:
        >>> hierarchical_s(400.0, (2, 2), LinkSpeed(0.0, 200.0), LinkSpeed(0.0, 100.0))
        6.0
    """
    nodes, local = shape
    inside_s = 2 * exchange_s(num_bytes, local, within)
    return inside_s + 2 * message_s(num_bytes * (nodes - 1) / nodes, between)
