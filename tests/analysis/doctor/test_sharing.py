"""Ranks that share a device, and gradients through host memory, are labelled."""

from __future__ import annotations

import pytest

from scaling.analysis.doctor.preflight import labels


def ranks(*uuids, backend="gloo", device="cuda", hosts=None):
    """What each wrote down of itself: env-<r>.json."""
    hosts = hosts or [0] * len(uuids)
    own = {"device": device, "backend": backend}
    return {
        r: {**own, "host": h, "device_uuid": u} for r, (u, h) in enumerate(zip(uuids, hosts, strict=True))
    }


def test_gloo_ranks_on_one_device_are_host_staged_and_share_it():
    shared, staged = labels(ranks("a", "a", "a", "a"))
    assert shared.startswith("ranks 0-3 share one device")
    assert staged.startswith("host-staged: Gloo carries the gradients through host memory")


def test_gloo_ranks_with_a_device_each_are_host_staged_only():
    (staged,) = labels(ranks("a", "b"))
    assert "host-staged" in staged


def test_nccl_ranks_that_share_a_device_go_over_no_link():
    shared, nccl = labels(ranks("a", "b", "a", backend="nccl"))
    assert shared.startswith("ranks 0 and 2 share one device")
    assert "its traffic crosses no link" in nccl


@pytest.mark.parametrize(
    "facts",
    [
        ranks("a", "b", backend="nccl"),
        ranks("a"),
        ranks("a", "a", backend="nccl", hosts=[0, 1]),  # a UUID is a host's own
        ranks(None, None, device="cpu"),
        {0: {"host": 0}, 1: {"host": 0}},
        {},
    ],
)
def test_a_device_each_and_nccl_need_no_label(facts):
    assert labels(facts) == ()
