"""What a step cost and what it lost, as plain data. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from gradwire.timeline import Kind, Span, Timeline
from gradwire.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class BucketStats:
    """One bucket of one step.

    Attributes:
        index: Number of the bucket within its backward pass.
        parameters: How many parameters it held.
        dense_bytes: Bytes an uncompressed all-reduce of it would send,
            `2 (N - 1) / N` times the size of its gradients.
        sent_bytes: Bytes this rank handed to the network, counted.
        received_bytes: Bytes this rank took from the network, counted.
        encode_s: Time to encode, before the first exchange.
        exchange_s: Time under way. Buckets overlap: add `StepStats.wire_s`.
        decode_s: Time after the first exchange: average, encode again, decode.
        exposed_s: How long the bucket was still unfinished after the step's
            last gradient was ready.
        relative_error: Norm of what this rank did not send over the norm of
            what it owed; estimated from a sample, None where not measured.
        residual_norm: Norm of the bucket's residual, as above.
        gradient_ratio: Norm of what was owed from earlier steps over the norm
            of the gradient; estimated at every step, from the largest
            parameter where nothing else is measured.
        spans: What was done when, `(kind, start, end)` in seconds of the
            process's clock; see `StepStats.timeline`.
    """

    index: int
    parameters: int
    dense_bytes: int
    sent_bytes: int
    received_bytes: int
    encode_s: float
    exchange_s: float
    decode_s: float
    exposed_s: float
    relative_error: float | None = None
    residual_norm: float | None = None
    gradient_ratio: float | None = None
    spans: tuple[tuple[Kind, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepStats:
    """One synchronised backward pass.

    Attributes:
        step: Its number, counted from 0.
        buckets: Its buckets, in order.
        exposed_s: Time from the last gradient being ready to the last bucket
            being averaged: what communication added to the step.
        wire_s: How long at least one exchange was under way.
        is_finite: Whether every averaged gradient was finite.

    Example:
        >>> bucket = BucketStats(0, 2, 4000, 500, 500, 0.01, 0.02, 0.01, 0.03)
        >>> StepStats(0, (bucket,), 0.03, 0.02, True).times_smaller
        8.0
    """

    step: int
    buckets: tuple[BucketStats, ...]
    exposed_s: float
    wire_s: float
    is_finite: bool

    @property
    def dense_bytes(self) -> int:
        """Bytes an uncompressed all-reduce would send."""
        return sum(b.dense_bytes for b in self.buckets)

    @property
    def sent_bytes(self) -> int:
        """Bytes this rank handed to the network."""
        return sum(b.sent_bytes for b in self.buckets)

    @property
    def received_bytes(self) -> int:
        """Bytes this rank took from the network."""
        return sum(b.received_bytes for b in self.buckets)

    @property
    def times_smaller(self) -> float:
        """Dense bytes over sent bytes; 1 where nothing was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0

    def timeline(self, rank: int = 0) -> Timeline:
        """Return what was encoded, sent and decoded when, for `report.timeline_html`.

        A bucket's bytes are all with its first transfer.

        Args:
            rank: The one whose statistics these are.

        Example:
            >>> spans = (("encode", 5.0, 6.0), ("transfer", 6.0, 9.0))
            >>> bucket = BucketStats(0, 2, 400, 50, 50, 1.0, 3.0, 0.0, 0.0, spans=spans)
            >>> StepStats(0, (bucket,), 0.0, 3.0, True).timeline().spans[1].end_s
            4.0
        """
        spans = self.spans(rank)
        origin = min((s.start_s for s in spans), default=0.0)
        shifted = tuple(
            replace(s, start_s=s.start_s - origin, end_s=s.end_s - origin) for s in spans
        )
        return Timeline(shifted, max((s.end_s for s in shifted), default=0.0))

    def spans(self, rank: int = 0) -> tuple[Span, ...]:
        """Return the same in seconds of `time.perf_counter`."""
        spans = []
        for bucket in self.buckets:
            num_bytes = bucket.sent_bytes
            for kind, start, end in sorted(bucket.spans, key=lambda span: span[1]):
                carried = num_bytes if kind == "transfer" else 0
                num_bytes -= carried
                name = f"bucket {bucket.index}"
                spans.append(Span(rank, kind, name, start, end, carried))
        return tuple(spans)

    def scalars(self) -> dict[str, float]:
        """Return the numbers a logger wants, by name.

        Example:
            >>> sorted(StepStats(0, (), 0.0, 0.0, True).scalars())[:2]
            ['gradwire/exposed_s', 'gradwire/received_bytes']
        """
        values = {
            "gradwire/sent_bytes": float(self.sent_bytes),
            "gradwire/received_bytes": float(self.received_bytes),
            "gradwire/times_smaller": self.times_smaller,
            "gradwire/exposed_s": self.exposed_s,
        }
        errors = [b.relative_error for b in self.buckets if b.relative_error is not None]
        if errors:
            values["gradwire/relative_error"] = max(errors)
        return values


@dataclass(frozen=True, slots=True)
class Stats:
    """What `Synchronizer.stats` returns.

    Attributes:
        steps_done: Synchronised backward passes so far, since the very start
            if the state was loaded.
        forwards: Forward passes with gradients enabled since `attach`, or
            None; more than there were steps where micro-batches run under
            `no_sync`.
        recent: The latest steps, oldest first.
        dense: Parameters that are not compressed, and why.
        residual_bytes: Memory the residual takes.
        sent_bytes: Bytes this rank handed to the network since `attach`.
        dense_bytes: What uncompressed all-reduces would have sent meanwhile.
        planned: The plan that was chosen in training, why, and advice; None
            where it was given, and on ranks other than 0.
    """

    steps_done: int
    forwards: int | None
    recent: tuple[StepStats, ...]
    dense: Mapping[str, str]
    residual_bytes: int
    sent_bytes: int = 0
    dense_bytes: int = 0
    planned: str | None = None

    def summary(self) -> str:
        """Say in one line what compression does here, and whether dense would be faster.

        The dense time is what the same bytes would take at the rate the
        exchanges reached, an estimate: `gradwire demo` measures it.

        Example:
            >>> Stats(0, None, (), {}, 0).summary()
            'no step has been synchronised yet'
        """
        if not self.recent:
            return "no step has been synchronised yet"
        steps = self.recent
        sent = median(s.sent_bytes for s in steps)
        exposed = median(s.exposed_s for s in steps)
        text = (
            f"{format_bytes(sent)} sent a step, {median(s.times_smaller for s in steps):.1f}x"
            f" smaller; {format_seconds(exposed)} of it exposed"
        )
        return f"{text}; {self._verdict()}"

    def _verdict(self) -> str:
        wire_s = sum(s.wire_s for s in self.recent)
        codec_s = sum(b.encode_s + b.decode_s for s in self.recent for b in s.buckets)
        sent = sum(s.sent_bytes for s in self.recent)
        if not sent or not wire_s:
            return "nothing went over the network"
        dense = sum(s.dense_bytes for s in self.recent)
        if sent >= dense:
            return "nothing is compressed"
        saved_s = (dense - sent) * wire_s / sent
        if saved_s > codec_s:
            return f"saves about {format_seconds((saved_s - codec_s) / len(self.recent))} a step"
        return "dense would be faster here: encoding takes longer than the bytes it saves"
