import math

import pytest

from gradwire.errors import SpecError
from gradwire.lab.playback import Playback
from gradwire.lab.script import RateChange, RateScript

TEXT = "0s 1Gbit/s; 500ms 100 Mbit/s rank 1;\n 10s unlimited;"
CHANGES = (RateChange(0.0, 1.25e8), RateChange(0.5, 1.25e7, 1), RateChange(10.0, math.inf))


def test_script_is_read_from_words():
    assert RateScript.parse(TEXT).changes == CHANGES


def test_script_comes_back_from_json():
    text = RateScript(CHANGES).to_json()
    assert "null" in text
    assert RateScript.parse(text).changes == CHANGES


def test_json_may_leave_the_rank_out():
    script = RateScript.parse('[{"at_s": 1, "rate_bytes_per_s": 125000}]')
    assert script.changes == (RateChange(1.0, 125000.0),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "TIME RATE"),
        ("1Gbit/s", "TIME RATE"),
        ("0s 1Gbit/s;; 1s 2Gbit/s", "TIME RATE"),
        ("soon 1Gbit/s", "duration"),
        ("0s fast", "rate="),
        ("0s 1Gbit/s rank one", "rate="),
        ("5s 1Gbit/s; 1s 2Gbit/s", "in order of time"),
        ("[]", "one change or more"),
        ("[1]", "JSON array"),
        ("{}", "one change or more"),
        ('[{"at_s": 1}]', "rate_bytes_per_s"),
        ('[{"at_s": -1, "rate_bytes_per_s": 1}]', "at_s=-1"),
        ('[{"at_s": 0, "rate_bytes_per_s": 0}]', "above 0"),
        ('[{"at_s": 0, "rate_bytes_per_s": 1, "rank": -1}]', "rank=-1"),
        ('[{"at_s": 0', "JSON array"),
    ],
)
def test_script_that_is_none_is_refused_in_words(text, said):
    with pytest.raises(SpecError, match=said):
        RateScript.parse(text)


def test_playback_makes_all_changes_in_order():
    made = []
    script = RateScript(tuple(RateChange(i / 1000, 1.0 + i) for i in range(5)))
    with Playback(script, made.append) as playback:
        playback.finish()
    assert made == list(script.changes)
    assert [change for _, change in playback.made] == made
    times = [at for at, _ in playback.made]
    assert times == sorted(times)


def test_playback_ends_with_its_block():
    made = []
    with Playback(RateScript((RateChange(3600.0, 1.0),)), made.append):
        pass
    assert made == []


def test_playback_raises_what_a_change_raised():
    def make(_):
        raise OSError("no line")

    playback = Playback(RateScript((RateChange(0.0, 1.0),)), make)
    with pytest.raises(OSError, match="no line"), playback:
        playback.finish()
