"""Training over really limited lines, while lines are cut and ranks stopped or killed."""

import re
import sys
import time
from pathlib import Path

import pytest

from gradwire.lab.netns import Network, missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
WORKER = str(Path(__file__).with_name("lab_training.py"))
RATE = 6.25e6
LIMIT_S = 90.0
AT_MOST = 2
"""Steps that may still end after a rank has stopped: what it had sent was on its way."""


@pytest.fixture(autouse=True)
def _beside_others(monkeypatch):
    monkeypatch.setenv("GRADWIRE_LAB_NICE", "0")


def _command(limit_s: float, *stop: Path) -> list[str]:
    return [sys.executable, WORKER, str(limit_s), *map(str, stop)]


def _steps(workers, rank=0):
    return workers.output(rank).count("step")


def _goes_on(workers):
    """Wait for ten more steps."""
    workers.wait_for(f"step {_steps(workers) + 10}\n", timeout_s=LIMIT_S)


def _stands_still(workers):
    before = _steps(workers)
    time.sleep(0.5)
    assert _steps(workers) <= before + AT_MOST


def _is_clear(output, rank):
    """Check that a rank ended with an error that tells what failed, and where."""
    last = output.splitlines()[-1]
    assert re.search(rf"CollectiveError: step \d+, bucket \d+ \(.* failed on rank {rank}: .*", last)


def _finish(workers, stop):
    """Stop the training; return the number of steps, equal on all ranks as the parameters are."""
    stop.touch()
    first, *others = [text.splitlines() for text in workers.wait(LIMIT_S)]
    assert len(first[-1]) == 32
    assert all(lines == first for lines in others)
    return len(first) - 1


def test_training_outlives_a_cut_line_and_a_paused_rank(tmp_path):
    stop = tmp_path / "stop"
    with Network(2, RATE, verify=False) as network, network.start(_command(60, stop)) as workers:
        workers.wait_for("step 5\n", timeout_s=LIMIT_S)
        for stop_it, go_on in (
            (network.cut, network.restore),
            (workers.pause, workers.resume),
        ):
            stop_it(1)
            _stands_still(workers)
            go_on(1)
            _goes_on(workers)
        assert _finish(workers, stop) > 25


def test_killed_rank_is_told_on_all_others():
    with Network(3, RATE, verify=False) as network, network.start(_command(60)) as workers:
        workers.wait_for("step 5\n", timeout_s=LIMIT_S)
        workers.kill(1)
        outputs = workers.wait(LIMIT_S)
    for rank in (0, 2):
        _is_clear(outputs[rank], rank)


def test_line_that_stays_cut_is_told_on_all_ranks_within_the_time_limit():
    with Network(2, RATE, verify=False) as network, network.start(_command(3)) as workers:
        workers.wait_for("step 5\n", timeout_s=LIMIT_S)
        network.cut(1)
        outputs = workers.wait(LIMIT_S)
    for rank, text in enumerate(outputs):
        _is_clear(text, rank)
