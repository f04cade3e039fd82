"""Ranks that agree over a real store, one thread and one connection each."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import FileStore, HashStore, TCPStore

from scaling.worker.session import control as control_module
from scaling.worker.session.control import Aborted, Control

SLICE_S = 0.3


@pytest.fixture
def ranks(monkeypatch):
    """Three ranks' ends of the control plane."""
    monkeypatch.setattr(control_module, "SLICE", timedelta(seconds=SLICE_S))
    server = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    clients = [TCPStore("127.0.0.1", server.port, None, is_master=False) for _ in range(3)]
    yield [Control(client, rank) for rank, client in enumerate(clients)]
    del clients, server


def together(*calls):
    """What each call returns, or raises; all at once."""

    def outcome(call):
        try:
            return call()
        except Aborted as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def test_every_rank_hears_the_lead(ranks):
    said = together(*[lambda c=c, r=r: c.agree("k", [r, 3], lead=r == 0) for r, c in enumerate(ranks)])
    assert said == [[0, 3]] * 3


def test_no_rank_passes_a_meeting_before_the_last_arrives(ranks):
    arrived = threading.Event()

    def early(control):
        control.meet("here", 3)
        return arrived.is_set()

    def late(control):
        time.sleep(2.5 * SLICE_S)  # longer than a slice: waiting goes on over several
        arrived.set()
        control.meet("here", 3)
        return True

    assert together(lambda: early(ranks[0]), lambda: early(ranks[1]), lambda: late(ranks[2])) == [True] * 3


@pytest.mark.parametrize(
    ("values", "all_of_them"),
    [((True, True, True), True), ((True, False, True), False), ((False,) * 3, False)],
)
def test_one_no_is_enough(ranks, values, all_of_them):
    calls = [lambda c=c, v=v: c.all_true("fits", 3, v) for c, v in zip(ranks, values, strict=True)]
    assert together(*calls) == [all_of_them] * 3


def test_a_failure_reaches_all_who_wait_within_a_slice(ranks):
    began = time.monotonic()

    def fail():
        time.sleep(0.1)
        return ranks[2].abort({"rank": 2, "message": "it broke"})

    first, second, told = together(lambda: ranks[0].wait("never"), lambda: ranks[1].hear("never"), fail)
    assert told is True
    assert isinstance(first, Aborted)
    assert isinstance(second, Aborted)
    assert "it broke" in str(first)
    assert time.monotonic() - began < 0.1 + 2 * SLICE_S + 1.0


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_patience_ends_where_a_rank_does_not_come(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(control_module, "SLICE", timedelta(seconds=0.05))
    store = HashStore() if kind == "memory" else FileStore(str(tmp_path / "store"), 2)
    alone = Control(store, 0, patience_s=0.2)
    with pytest.raises(TimeoutError, match="here: waited 0 s for the other ranks"):
        alone.meet("here", 2)


def test_only_one_is_the_first_to_fail(ranks):
    records = [{"rank": r} for r in range(3)]
    firsts = together(*[lambda c=c, d=d: c.abort(d) for c, d in zip(ranks, records, strict=True)])
    assert sum(firsts) == 1


def test_a_block_begins_with_the_conductor_and_ends_with_the_last(ranks):
    order = []

    def conduct():
        ranks[0].start(7, conductor=True)
        order.append("word")
        ranks[0].finished(7)
        order.append("finished")

    def play(control):
        control.start(7, conductor=False)
        time.sleep(0.1)
        order.append("played")
        control.finish(7, 2)

    together(lambda: play(ranks[1]), lambda: play(ranks[2]), conduct)
    assert order == ["word", "played", "played", "finished"]
