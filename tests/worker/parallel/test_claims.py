"""Which collectives count as waited for."""

import time

import pytest
import torch
import torch.distributed as dist

from scaling.worker.parallel.waits import Claims

KIB = [torch.zeros(256)]
COMPUTES, SENDS, REDUCES = None, 7, 8


class Work(dist.Work):
    """A work of no back end."""


def begun(claims, name="allreduce", group="all"):
    work = Work()
    return work, claims.begun(name, group, (KIB,), work)


def ended(claims):
    """The traffic of the steps so far, the last one included."""
    claims.end_step()
    claims.end_step()
    return claims.traffic()


def test_a_wait_claims_its_collective_and_those_of_its_group_before_it():
    claims = Claims()
    _, _other = begun(claims, group="some"), begun(claims)
    last, _ = begun(claims)
    begun(claims)  # behind it
    claims.waited(last, COMPUTES)
    assert ended(claims) == (4 * 1024, 2 * 1024, 0)


def test_a_message_claims_nothing_else_unless_it_ends_a_batch():
    claims = Claims()
    begun(claims, "recv")
    work, _ = begun(claims, "send")
    claims.waited(work, COMPUTES)
    assert ended(claims).unclaimed_bytes == 1024
    claims = Claims()
    begun(claims, "recv")
    begun(claims, "send")
    batch = Work()
    claims.begun("_end_coalescing", "all", (), batch)
    claims.waited(batch, COMPUTES)
    assert ended(claims).unclaimed_bytes == 0


def test_who_asks_before_it_waits_may_have_waited_unseen():
    claims = Claims()
    work, _ = begun(claims)
    claims.polled(work, done=False)
    claims.waited(work, COMPUTES)
    done, _ = begun(claims)
    claims.polled(done, done=True)  # no wait at all
    assert ended(claims) == (2048, 1024, 1)


def test_a_future_stands_for_the_works_that_were_asked_for_one():
    claims = Claims()
    work, noted = begun(claims)
    begun(claims)
    claims.asked(work)
    claims.claim(claims.of_futures(), COMPUTES)
    assert noted.claimed
    assert ended(claims).unclaimed_bytes == 1024


def test_a_stream_carries_what_it_waits_for_until_the_one_that_computes_waits_for_it():
    claims = Claims()
    work, noted = begun(claims)
    claims.waited(work, SENDS)
    claims.claim(claims.on_stream(SENDS), REDUCES)
    event = torch.Event
    claims.recorded(event, REDUCES)
    later, _ = begun(claims)
    claims.waited(later, REDUCES)  # behind the event
    assert not noted.claimed
    claims.claim(claims.at_event(event), COMPUTES)
    assert noted.claimed
    assert claims.on_stream(SENDS) == []
    assert ended(claims).unclaimed_bytes == 1024


def test_a_wait_in_the_next_step_counts():
    claims = Claims()
    work, _ = begun(claims)
    claims.end_step()
    claims.waited(work, COMPUTES)
    claims.end_step()
    assert claims.traffic() == (1024, 0, 0)


def test_a_wait_claims_nothing_of_what_was_begun_more_than_two_steps_ago():
    claims = Claims()
    old, noted = begun(claims)
    claims.end_step()
    claims.end_step()
    _, later = begun(claims)
    claims.waited(old, COMPUTES)
    assert (noted.claimed, later.claimed) == (False, False)


@pytest.mark.parametrize("stream", [COMPUTES, SENDS])
def test_a_step_costs_in_proportion_to_its_collectives(stream):
    def spent_s(count):
        claims = Claims()
        begin = time.thread_time()
        for work in [begun(claims)[0] for _ in range(count)]:
            claims.waited(work, stream)
        claims.claim(claims.on_stream(SENDS), COMPUTES)
        claims.end_step()
        took_s = time.thread_time() - begin
        assert ended(claims).unclaimed_bytes == 0
        return took_s

    few_s, many_s = (min(spent_s(count) for _ in range(3)) for count in (300, 1200))
    assert many_s < 8 * few_s  # were each wait to look at all of them, it would be 16 times as much
