"""What rank 0 takes the pieces of a launch to cost, from what it warmed up."""

import pytest

from scaling.worker.session.rounds import exchange_of


def test_an_exchange_takes_what_its_bytes_take():
    assert exchange_of(2**20, {2**10: 0.001, 2**18: 0.01}, 1.0) == pytest.approx(0.04)
    assert exchange_of(2**20, {}, 1.0) == 0.0


def test_an_exchange_takes_no_longer_than_the_step_that_holds_it():
    """64 ranks on two cores: 0.65 s for 1 KiB, so that the sweep ends there, and 1.6 s for a step with 2 MiB."""
    assert exchange_of(2 * 2**20, {2**10: 0.65}, 1.6) == 1.6
