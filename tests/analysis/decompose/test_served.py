"""Which collectives of a run begin in turn: those that `scaling run` makes of messages over a host's back end."""

from types import SimpleNamespace

import pytest

from scaling.analysis.network.channel import channels
from scaling.settings.plan import HARNESS, OWN_LOOP
from scaling.settings.run import KINDS

KEYS = (2, 2, 2, 4, 4)
"""Of a communicator of two ranks, and of one of four."""
SENT = [
    KINDS.index(kind)
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_gather", "reduce_scatter")
]


def served(backend, source):
    ranks = [
        SimpleNamespace(
            launch=0,
            rank=rank,
            host=rank,
            clock_bound_ns=None,
            groups={2: (rank // 2 * 2, rank // 2 * 2 + 1), 4: (0, 1, 2, 3)},
        )
        for rank in range(4)
    ]
    spec = SimpleNamespace(topology=SimpleNamespace(backend=backend))
    return channels(SimpleNamespace(ranks=ranks), SimpleNamespace(spec=spec, source=source))


@pytest.mark.parametrize(
    ("backend", "source", "in_turn"),
    [
        ("gloo", HARNESS, (True, True, False, True, True)),
        ("gloo", OWN_LOOP, (False,) * 5),
        ("nccl", HARNESS, (False,) * 5),
    ],
)
def test_all_gathers_and_reduce_scatters_begin_in_turn(backend, source, in_turn):
    channel = served(backend, source)(KEYS, SENT)
    assert channel.in_turn == in_turn
    assert channel.fifo == (backend == "nccl")


def test_without_kinds_none_is():
    assert not any(served("gloo", HARNESS)(KEYS).in_turn)
