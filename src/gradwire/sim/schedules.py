"""Phases: collectives as the messages they consist of.

A phase is a sequence of rounds. A rank sends its messages of a round once its
own messages of earlier rounds have left and those for it have arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

Groups = tuple[tuple[int, ...], ...]
"""Ranks that exchange among themselves; several groups at once."""


class Message(NamedTuple):
    """Bytes from one rank to another, or to several at once by multicast."""

    source: int
    targets: tuple[int, ...]
    num_bytes: float


@dataclass(frozen=True)
class Phase(ABC):
    """What travels between two pieces of work of a reduction.

    Attributes:
        fraction: Share of everything that this phase moves, of a bucket that
            is sent in chunks.
    """

    fraction: float = 1.0

    @property
    @abstractmethod
    def num_rounds(self) -> int:
        """How many messages follow each other."""

    @abstractmethod
    def messages(self, number: int) -> Iterator[Message]:
        """Return the messages of a round."""

    @abstractmethod
    def totals(self) -> Iterator[Message]:
        """Return everything that travels, without regard to rounds."""

    @property
    @abstractmethod
    def span(self) -> tuple[int, int]:
        """Two ranks that are as far apart as any that talk to each other."""

    def sent_bytes(self, rank: int) -> float:
        """Return what a rank hands over, a multicast message once."""
        return self._by_rank[0].get(rank, 0.0)

    def received_bytes(self, rank: int) -> float:
        """Return what arrives at a rank."""
        return self._by_rank[1].get(rank, 0.0)

    @cached_property
    def _by_rank(self) -> tuple[dict[int, float], dict[int, float]]:
        sent, received = dict[int, float](), dict[int, float]()
        for source, targets, num_bytes in self.totals():
            sent[source] = sent.get(source, 0.0) + num_bytes
            for target in targets:
                received[target] = received.get(target, 0.0) + num_bytes
        return sent, received

    def scaled(self, fraction: float) -> Self:
        """Return a part of the same phase."""
        return replace(self, fraction=self.fraction * fraction)


@dataclass(frozen=True)
class Exchange(Phase):
    """Everyone to everyone directly: all-to-all of shards, or all-gather.

    Attributes:
        groups: Who exchanges with whom.
        sizes: By rank, bytes of what it owns.
        is_to_owner: Whether a message is as long as what its receiver owns (a
            shard on its way to its owner) or its sender (what it tells all).

    Example:
        >>> phase = Exchange(groups=((0, 1, 2),), sizes=(10.0, 20.0, 30.0), is_to_owner=True)
        >>> phase.sent_bytes(0), phase.received_bytes(0)
        (50.0, 20.0)
    """

    groups: Groups = ()
    sizes: tuple[float, ...] = ()
    is_to_owner: bool = True

    @property
    def num_rounds(self) -> int:
        """All messages leave at once."""
        return 1

    def messages(self, number: int) -> Iterator[Message]:
        """Return a message for each pair of each group."""
        for group in self.groups:
            for source in group:
                for target in group:
                    size = self.sizes[target if self.is_to_owner else source]
                    if source != target and size:
                        yield Message(source, (target,), size * self.fraction)

    def totals(self) -> Iterator[Message]:
        """See `Phase.totals`."""
        return self.messages(0)

    def sent_bytes(self, rank: int) -> float:
        """See `Phase.sent_bytes`."""
        return self._moved(rank, is_single=not self.is_to_owner)

    def received_bytes(self, rank: int) -> float:
        """See `Phase.received_bytes`."""
        return self._moved(rank, is_single=self.is_to_owner)

    def _moved(self, rank: int, *, is_single: bool) -> float:
        count, total = self._group_of[rank]
        own = self.sizes[rank]
        return ((own * count if is_single else total) - own) * self.fraction

    @cached_property
    def _group_of(self) -> dict[int, tuple[int, float]]:
        """By rank, how many ranks its group has and how much they own."""
        found = {}
        for group in self.groups:
            sizes = self.sizes if len(self.groups) == 1 else [self.sizes[r] for r in group]
            owned = len(group), sum(sizes)
            found.update(dict.fromkeys(group, owned))
        return found

    @property
    def span(self) -> tuple[int, int]:
        """First and last of a group."""
        return self.groups[0][0], self.groups[0][-1]


@dataclass(frozen=True)
class Ring(Phase):
    """Every rank to its neighbour: one lap gathers, two laps also sum before.

    Attributes:
        groups: Rings, each in its order.
        sizes: By rank, bytes of the chunk that it owns.
        laps: 1 for an all-gather or a reduce-scatter, 2 for an all-reduce.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for
    clusters of workstations, JPDC 69(2), 2009.

    Example:
        >>> Ring(groups=((0, 1),), sizes=(50.0, 50.0), laps=2).sent_bytes(0)
        100.0
    """

    groups: Groups = ()
    sizes: tuple[float, ...] = ()
    laps: int = 1

    @property
    def span(self) -> tuple[int, int]:
        """First and last of a ring."""
        return self.groups[0][0], self.groups[0][-1]

    @property
    def num_rounds(self) -> int:
        """A lap visits every other rank."""
        return self.laps * (max(map(len, self.groups)) - 1)

    def messages(self, number: int) -> Iterator[Message]:
        """Return the messages of a round: chunks move on by one rank."""
        for group in self.groups:
            count = len(group)
            if number < self.laps * (count - 1):
                lap, step = divmod(number, count - 1)
                for place in range(count):
                    size = self.sizes[group[(place - step + lap) % count]] * self.fraction
                    yield Message(group[place], (group[(place + 1) % count],), size)

    def totals(self) -> Iterator[Message]:
        """Return one message for each neighbour: all chunks but one in each lap."""
        for group in self.groups:
            count, total = len(group), sum(self.sizes[r] for r in group)
            for place in range(count if count > 1 else 0):
                missing = sum(
                    self.sizes[group[(place + 1 + lap) % count]] for lap in range(self.laps)
                )
                size = (total * self.laps - missing) * self.fraction
                yield Message(group[place], (group[(place + 1) % count],), size)


@dataclass(frozen=True)
class Rounds(Phase):
    """Messages written out.

    Attributes:
        rounds: The messages of each round.
    """

    rounds: tuple[tuple[Message, ...], ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """First and last of all ranks."""
        ranks = [r for m in self.totals() for r in (m.source, *m.targets)]
        return min(ranks), max(ranks)

    @property
    def num_rounds(self) -> int:
        """As many as were given."""
        return len(self.rounds)

    def messages(self, number: int) -> Iterator[Message]:
        """See `Phase.messages`."""
        for message in self.rounds[number]:
            yield message._replace(num_bytes=message.num_bytes * self.fraction)

    def totals(self) -> Iterator[Message]:
        """See `Phase.totals`."""
        for number in range(self.num_rounds):
            yield from self.messages(number)


def multicast(sizes: Sequence[float]) -> Rounds:
    """Everyone's bytes to all others, each sent once and copied by switches."""
    ranks = range(len(sizes))
    messages = (Message(r, tuple(t for t in ranks if t != r), sizes[r]) for r in ranks)
    return Rounds(rounds=(tuple(messages),))


def tree_broadcast(ranks: Sequence[int], num_bytes: float) -> Rounds:
    """Send from the first rank to all: in each round whoever has it passes it on.

    Example:
        >>> [len(messages) for messages in tree_broadcast(range(6), 10.0).rounds]
        [1, 2, 2]
    """
    rounds, reached = [], 1
    while reached < len(ranks):
        new = range(reached, min(2 * reached, len(ranks)))
        rounds.append(tuple(Message(ranks[t - reached], (ranks[t],), num_bytes) for t in new))
        reached *= 2
    return Rounds(rounds=tuple(rounds))


def tree_all_reduce(ranks: Sequence[int], num_bytes: float) -> Rounds:
    """Sum towards the first rank along a binomial tree, then broadcast the sum."""
    down = tree_broadcast(ranks, num_bytes).rounds
    up = [
        tuple(Message(m.targets[0], (m.source,), num_bytes) for m in messages)
        for messages in reversed(down)
    ]
    return Rounds(rounds=(*up, *down))


def tree_all_gather(sizes: Sequence[float]) -> Rounds:
    """Everyone's bytes to all others, each along a binomial tree of its own."""
    count = len(sizes)
    turns = [[(root + r) % count for r in range(count)] for root in range(count)]
    trees = [tree_broadcast(turn, sizes[turn[0]]).rounds for turn in turns]
    return Rounds(
        rounds=tuple(tuple(m for t in level for m in t) for level in zip(*trees, strict=True))
    )


def unicast_broadcast(ranks: Sequence[int], num_bytes: float) -> Rounds:
    """Send from the first rank to each of the others at once."""
    messages = tuple(Message(ranks[0], (target,), num_bytes) for target in ranks[1:])
    return Rounds(rounds=(messages,))


def chain_broadcast(ranks: Sequence[int], num_bytes: float, chunks: int = 1) -> Rounds:
    """Send from the first rank from neighbour to neighbour, chunk by chunk.

    Example:
        >>> [len(messages) for messages in chain_broadcast(range(3), 10.0, chunks=2).rounds]
        [1, 2, 1]
    """
    links = len(ranks) - 1
    rounds = [
        tuple(
            Message(ranks[link], (ranks[link + 1],), num_bytes / chunks)
            for link in range(links)
            if 0 <= number - link < chunks
        )
        for number in range(links + chunks - 1)
    ]
    return Rounds(rounds=tuple(rounds))


def multicast_broadcast(ranks: Sequence[int], num_bytes: float) -> Rounds:
    """Send from the first rank once; switches copy it to the others."""
    return Rounds(rounds=((Message(ranks[0], tuple(ranks[1:]), num_bytes),),))
