"""What all tests share: poisoned memory, derandomised Hypothesis, counted skips."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("search", settings.get_profile("ci"), derandomize=False, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell that starts the tests in the background has them ignore it, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Memory that was allocated and not yet written holds NaN, or 0xFF bytes.
torch.use_deterministic_algorithms(mode=True)
torch.utils.deterministic.fill_uninitialized_memory = True


def pytest_addoption(parser):
    parser.addoption("--max-skips", type=int, help="fail if more tests than this are skipped")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    limit = session.config.getoption("max_skips")
    if reporter is None or limit is None:
        return
    skips = len(reporter.stats.get("skipped", []))
    if skips > limit:
        reporter.write_line(f"{skips} tests were skipped, at most {limit} may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep measurements of the tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
