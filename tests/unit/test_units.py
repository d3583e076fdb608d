import math

import pytest

from gradwire.errors import SpecError
from gradwire.units import format_bytes, format_rate, format_seconds, parse_rate, parse_seconds


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("100Mbit/s", 12.5e6),
        ("1Gbps", 125e6),
        ("12.5MB/s", 12.5e6),
        ("10kbit/s", 1250.0),
        ("10Kbps", 1250.0),
        ("8b/s", 1.0),
        ("1Tbit/s", 125e9),
        (" 2 Gbit/s ", 250e6),
        ("unlimited", math.inf),
    ],
)
def test_parse_rate_reads_bits_and_bytes(text, bytes_per_s):
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "fast", "100", "0Mbit/s", "-1Mbit/s", "1.2.3Gbit/s", "1Gbit"])
def test_parse_rate_refuses_what_is_no_rate(text):
    with pytest.raises(SpecError, match="is not a rate above 0, such as"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("1.5s", 1.5), ("50us", 5e-5), ("50µs", 5e-5), ("3ns", 3e-9), ("2 min", 120)],
)
def test_parse_seconds_reads_every_unit(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "20", "soon", "-1s", "1..2s", "20 hours"])
def test_parse_seconds_refuses_what_is_no_duration(text):
    with pytest.raises(SpecError, match="is not a duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (43_750_000, "43.8 MB"),
        (2e12, "2 TB"),
        (-5e9, "-5 GB"),
    ],
)
def test_format_bytes_uses_si_prefixes(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_format_rate_writes_bits_per_second():
    assert format_rate(12_500_000) == "100 Mbit/s"
    assert format_rate(math.inf) == "unlimited"
    assert parse_rate(format_rate(125e6)) == 125e6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.5, "2.5 s"),
        (0.0425, "42.5 ms"),
        (5e-5, "50 us"),
        (3e-9, "3 ns"),
        (-0.02, "-20 ms"),
    ],
)
def test_format_seconds_chooses_the_unit(seconds, text):
    assert format_seconds(seconds) == text


def test_units_fit_what_is_shown():
    assert format_bytes(999_999_999.9) == "1 GB"
    assert format_seconds(0.9999) == "1 s"
    assert format_seconds(1234) == "1230 s"
