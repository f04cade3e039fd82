"""DDP's rule for filling buckets, on sizes that can be followed by hand; against DDP itself in tests/worker."""

import numpy as np
import pytest

from scaling.analysis.predict.change import Gradients, assign, bucketed, pieces

MIB = 2**20


def test_a_bucket_is_closed_by_the_parameter_that_brings_it_to_its_limit():
    assert assign([MIB, MIB, MIB, MIB, MIB], bucket_cap_mb=2) == [[0, 1], [2, 3], [4]]
    assert assign([3 * MIB, 1, 1], bucket_cap_mb=2) == [[0], [1, 2]]


def test_at_torchs_default_the_first_bucket_has_a_limit_of_its_own():
    assert assign([MIB // 2] * 4, bucket_cap_mb=25) == [[0, 1], [2, 3]]
    assert assign([MIB // 2] * 4, bucket_cap_mb=24) == [[0, 1, 2, 3]]


def test_buckets_are_filled_in_the_order_in_which_gradients_are_ready():
    registered_first_is_ready_last = Gradients(sizes=(3, 2, 1), ready=np.array([[0.9, 0.5, 0.1]]) * 1.0)
    found = bucketed(registered_first_is_ready_last, bucket_cap_mb=3 / MIB)
    assert found.sizes == (3, 3)
    assert found.ready.tolist() == [[0.5, 0.9]]


def test_a_bucket_is_ready_with_its_last_parameter_in_every_resample():
    ready = np.array([[0.1, 0.5], [0.6, 0.4]])
    assert bucketed(Gradients(sizes=(1, 1), ready=ready), bucket_cap_mb=1).ready.tolist() == [[0.5], [0.6]]


def test_pieces_of_buckets_give_the_measured_buckets_again():
    buckets = Gradients(sizes=(MIB, 2 * MIB + 5), ready=np.array([[0.25, 1.0]]))
    found = pieces(buckets)
    assert sum(found.sizes) == sum(buckets.sizes)
    assert not found.exact
    whole = bucketed(found, bucket_cap_mb=1)
    assert whole.sizes[0] == MIB
    assert whole.ready[0, 0] == pytest.approx(0.25)
