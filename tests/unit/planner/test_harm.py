"""What is lost or deferred costs training, more than in proportion."""

from __future__ import annotations

import pytest
import torch

from gradwire.planner.harm import harm, lateness


@pytest.mark.parametrize("deferred", [0.1, 0.5, 0.8])
def test_lateness_is_the_mean_wait_of_a_value_that_keeps_being_deferred(deferred):
    owed = torch.zeros(400)
    for step in range(400):  # one unit arrives a step, a share of all that is owed stays
        owed[step] = 1.0
        owed *= deferred
    assert float(owed.sum()) == pytest.approx(lateness(deferred), rel=1e-4)


def test_harm_of_deferral_grows_faster_than_what_is_deferred():
    found = [harm(share, feedback=True) for share in (0.0, 0.2, 0.4, 0.8)]
    assert found[0] == 0
    assert found[2] > 2 * found[1]
    assert found[3] > 4 * found[2]


def test_harm_is_finite_where_nothing_is_sent():
    assert harm(1.0, feedback=True) == harm(2.0, feedback=True) < float("inf")
