"""One cause out of what many ranks left."""

import json
import signal

import pytest

from scaling.launchers.failure.cause import OF_ITS_OWN, cause, last_error
from scaling.launchers.failure.evidence import LaunchEvidence, gather

LOST = "[gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:48371"
WAITED = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete"
STAGE = "plain at world size 4, round 2"


def error(rank, message=LOST, kind="RuntimeError", **more):
    return {"rank": rank, "type": kind, "message": message, "stage": STAGE, **more}


def stack(rank, *frames, **more):
    return {"rank": rank, "stage": STAGE, "stack": list(frames), **more}


def seen(**what):
    return LaunchEvidence(**{"errors": {}, "stacks": {}, "exits": {}, "started": frozenset(range(4)), **what})


def test_an_exception_comes_before_the_connections_that_it_cost(launch):
    found = cause(
        seen(errors={0: error(0, first=True), 2: error(2, "shapes do not match", "ValueError")}), launch
    )
    assert (found.status, found.rank, found.world_size) == ("failed", 2, 4)
    assert found.error.startswith("ValueError: shapes do not match, in plain at world size 4, round 2")


def test_workers_of_a_loader_without_shared_memory_are_told_so(launch):
    where = "/usr/lib/python3.11/multiprocessing/synchronize.py"
    full = error(1, "[Errno 28] No space left on device", "OSError", file=where, line=57)
    assert "/dev/shm) is full or too small" in cause(seen(errors={1: full}), launch).error
    full["file"] = "/home/me/cache.py"
    assert "/dev/shm" not in cause(seen(errors={1: full}), launch).error


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (7, "SIGBUS")])
def test_a_killed_rank_comes_before_its_peers_and_those_that_torchrun_ended(launch, number, name):
    exits = {0: 143, 3: -number, 1: 1, 2: -signal.SIGTERM}
    found = cause(seen(errors={1: error(1)}, stacks={0: stack(0)}, exits=exits), launch)
    assert (found.rank, found.world_size) == (3, 4)
    assert f"rank 3 was ended by {name}" in found.error


def test_a_rank_that_somebody_ended_is_named_where_it_is_the_only_one(launch):
    found = cause(seen(errors={0: error(0)}, stacks={1: stack(1)}, exits={1: 143, 0: 1}), launch)
    assert (found.rank, found.status) == (1, "failed")
    assert "ended by SIGTERM" in found.error


def test_a_hung_rank_is_the_one_that_neither_waits_nor_failed(launch):
    stacks = {
        2: stack(2, "/x/scaling/worker/session/control.py:44 in wait"),
        3: stack(
            3,
            "/site/torch/autograd/graph.py:829 in run",
            "/usr/lib/python3.11/threading.py:1 in join",
            "/home/me/model.py:7 in forward",
            collective="c",
        ),
    }
    found = cause(
        seen(errors={0: error(0, WAITED, collective="d")}, stacks=stacks, told=frozenset({2, 3})), launch
    )
    assert (found.status, found.rank, found.world_size) == ("timeout", 3, 4)
    assert "at /site/torch/autograd/graph.py:829 in run, from /home/me/model.py:7 in forward" in found.error
    assert "the last collective it entered: c; rank 0 waited in d" in found.error
    assert str(launch.stack(3)) in found.error


BACKWARD = "/site/torch/autograd/graph.py:829 in _engine_run_backward"


def test_where_no_rank_gave_up_the_one_that_is_behind_in_collectives_hung(launch):
    """Before a step was timed the launcher ends a launch that is idle, and all ranks are told at once."""
    stacks = {
        0: stack(0, BACKWARD, entered={"0": 3, "2": 9}),
        1: stack(1, BACKWARD, entered={"0": 3, "2": 9}),
        2: stack(2, "/home/me/model.py:7 in forward", entered={"0": 3, "2": 8}),
        3: stack(3, "/x/scaling/worker/session/control.py:44 in wait", entered={"0": 2}),
    }
    found = cause(seen(stacks=stacks, told=frozenset(range(4)), silent_s=60.0), launch)
    assert (found.status, found.rank) == ("timeout", 2)
    assert "rank 2 hung in plain at world size 4, round 2 at /home/me/model.py:7 in forward" in found.error


def test_where_none_is_behind_no_rank_is_blamed(launch):
    stacks = {r: stack(r, BACKWARD, entered={"0": 9}, collective="gloo:all_reduce number 9") for r in (0, 1)}
    found = cause(seen(stacks=stacks, told=frozenset({0, 1}), silent_s=60.0), launch)
    assert (found.status, found.rank, found.world_size) == ("timeout", None, 4)
    assert found.stage == "plain at world size 4"
    assert found.error.startswith("ranks 0, 1 hung in plain at world size 4, round 2, and none is behind")
    assert "as when a link is cut" in found.error


def test_a_hung_rank_that_torchrun_ended_is_not_taken_for_a_killed_one(launch):
    hung = seen(
        errors={0: error(0, WAITED)},
        stacks={1: stack(1, "/home/me/data.py:3 in fetch")},
        exits={0: 1, 1: 143},
    )
    found = cause(hung, launch)
    assert (found.status, found.rank) == ("timeout", 1)
    assert "rank 1 hung in" in found.error
    assert "at /home/me/data.py:3 in fetch" in found.error


def test_a_stopped_rank_is_named_even_where_it_left_no_stack(launch):
    found = cause(seen(errors={0: error(0, WAITED)}, told=frozenset({1}), stopped=frozenset({1})), launch)
    assert (found.status, found.rank) == ("timeout", 1)
    assert "rank 1 hung (stopped by a signal)" in found.error
    assert "it left no stack" in found.error


def test_a_stopped_rank_that_went_on_and_lost_its_peers_is_the_one_that_hung(launch):
    """It is continued to say where it stands, and may fail before it has: its error follows from its peers'."""
    both = {0: error(0, WAITED, collective="d", first=True), 1: error(1)}
    stood = {1: stack(1, "/home/me/model.py:7 in forward", collective="c")}
    found = cause(seen(errors=both, stacks=stood, told=frozenset({1}), stopped=frozenset({1})), launch)
    assert (found.status, found.rank) == ("timeout", 1)
    assert found.error.startswith(
        f"rank 1 hung (stopped by a signal) in {STAGE} at /home/me/model.py:7 in forward"
    )
    assert "rank 0 waited in d" in found.error


def test_a_rank_that_was_still_busy_when_another_was_killed_is_not_called_hung(launch):
    found = cause(
        seen(errors={0: error(0)}, stacks={2: stack(2, "/m.py:1 in f")}, exits={1: -9, 2: 143}), launch
    )
    assert found.rank == 1


def test_a_rank_without_a_word_is_named(launch):
    found = cause(seen(errors={0: error(0), 1: error(1), 3: error(3)}), launch)
    assert found.rank == 2
    assert "rank 2 ended without an error message" in found.error


def test_where_all_lost_each_other_it_is_what_lies_between_them(launch):
    found = cause(seen(errors={rank: error(rank, WAITED) for rank in range(4)}), launch)
    assert found.status == "timeout"
    assert "ranks 0, 1, 2, 3 lost each other" in found.error


AGENT = """\
Root Cause (first observed failure):
[0]:
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 10)
"""
WATCHDOG = (
    "[rank{rank}]:[E606 09:10:08.365393482 ProcessGroupNCCL.cpp:2197] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Process group watchdog thread terminated with exception: {said}\n"
    "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:760\n"
)
OUTLASTED = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, OpType=ALLREDUCE, NumelIn=4, "
    "NumelOut=4, Timeout(ms)=10000) ran for 10009 milliseconds before timing out."
)
LOST_DEVICE = "CUDA error: unspecified launch failure"


def aborted(launch, *ranks):
    """(rank, exit code, what the watchdog said or None) of each, as torchrun and the logs have them."""
    launch.agent_log(0).write_text("".join(AGENT.format(rank=rank, code=code) for rank, code, _ in ranks))
    for rank, _, said in ranks:
        launch.log(rank).write_text("" if said is None else WATCHDOG.format(rank=rank, said=said))
    return gather(launch)


def test_a_rank_whose_device_fell_off_is_named_though_nccl_s_watchdog_ended_it(launch):
    found = cause(aborted(launch, (1, -6, LOST_DEVICE), (0, -6, OUTLASTED), (2, 143, None)), launch)
    assert (found.status, found.rank) == ("failed", 1)
    assert "NCCL's watchdog: CUDA error: unspecified launch failure" in found.error


def test_a_rank_that_hung_is_named_and_not_those_whose_watchdog_ended_them(launch):
    """torchrun kills what does not heed SIGTERM: a stopped rank."""
    found = cause(aborted(launch, (0, -6, OUTLASTED), (1, -9, None)), launch)
    assert (found.status, found.rank) == ("timeout", 1)
    assert "rank 1 hung" in found.error


def test_watchdogs_everywhere_are_a_link_between_the_ranks(launch):
    found = cause(aborted(launch, (0, -6, OUTLASTED), (1, 134, OUTLASTED)), launch)
    assert found.status == "timeout"
    assert "ranks 0, 1 lost each other" in found.error


def test_an_abort_of_another_kind_stays_one(launch):
    found = cause(aborted(launch, (1, -6, None)), launch)
    assert "rank 1 was ended by SIGABRT" in found.error


def test_a_kernel_that_timed_out_is_no_secondhand_word(launch):
    own = error(1, "CUDA error: the launch timed out and was terminated", "AcceleratorError")
    found = cause(seen(errors={0: error(0), 1: own}), launch)
    assert (found.status, found.rank) == ("failed", 1)


@pytest.mark.parametrize(
    "message",
    [
        "no batch from the data workers: DataLoader timed out after 9.0 seconds",
        "in a data worker: ConnectionError: connection refused",
    ],
)
def test_a_ranks_own_input_is_its_own_whatever_the_words(launch, message):
    """It is no link between ranks that timed out or was refused."""
    found = cause(seen(errors={0: error(0, WAITED, first=True), 3: error(3, message, OF_ITS_OWN)}), launch)
    assert (found.status, found.rank) == ("failed", 3)
    assert message in found.error


def test_a_rank_that_the_others_wait_for_is_named_where_it_is_gone(launch):
    waiting = {rank: stack(rank, "/x/scaling/worker/session/control.py:44 in wait") for rank in (0, 1, 3)}
    found = cause(seen(stacks=waiting, told=frozenset(waiting), silent_s=140.0), launch)
    assert (found.status, found.rank, found.world_size) == ("timeout", 2, 4)
    assert found.error.startswith(f"no progress for 140 s, in {STAGE}; rank 2 does not answer")


def test_ranks_that_all_wait_for_an_answer_lost_each_other(launch):
    waiting = {rank: stack(rank, "/x/scaling/worker/session/control.py:44 in wait") for rank in range(4)}
    found = cause(seen(stacks=waiting, told=frozenset(waiting), silent_s=23.0), launch)
    assert (found.status, found.rank, found.world_size) == ("timeout", None, 4)
    assert found.error.startswith(
        "ranks 0, 1, 2, 3 lost each other, as when a link is cut: no progress for 23 s"
    )


def test_a_rank_that_was_seen_to_be_gone_is_named_whatever_the_others_were_at(launch):
    """NCCL's ranks wait for it in a collective, where they look as if they hung."""
    others = {rank: stack(rank, "/site/torch/cuda/streams.py:1 in synchronize") for rank in (0, 1, 3)}
    found = cause(seen(stacks=others, told=frozenset(others), missing=frozenset({2})), launch)
    assert (found.status, found.rank, found.world_size) == ("failed", 2, 4)
    assert found.error.startswith(
        f"rank 2 ended without an error message; rank 0 waited for it in {STAGE}; log: "
    )


def test_a_rank_that_was_killed_is_told_as_killed_also_where_it_was_seen_to_be_gone(launch):
    found = cause(seen(stacks={0: stack(0)}, exits={2: -9}, missing=frozenset({2})), launch)
    assert "rank 2 was ended by SIGKILL" in found.error


def test_memory_is_passed_on(launch):
    found = cause(seen(errors={1: error(1, "can't allocate memory", out_of_memory=True)}), launch)
    assert found.out_of_memory


def test_silence_is_said(launch):
    found = cause(seen(silent_s=130.0, started=frozenset()), launch)
    assert (found.status, found.error) == ("timeout", "no progress for 130 s, and no rank says why")


def test_it_is_read_from_what_ranks_and_torchrun_left(launch):
    launch.error(0).write_text(json.dumps(error(0)))
    launch.error(2).write_text(json.dumps({**error(2), "first": True}))
    launch.stack(3).write_text(json.dumps(stack(3)))
    launch.error(1).write_text("{ cut off")
    for rank in range(4):
        launch.log(rank).write_text("")
    launch.agent_log(1).write_text(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026\n  host      : h\n"
        "  rank      : 1 (local_rank: 0)\n  exitcode  : -9 (pid: 10)\n"
    )
    found = gather(launch)
    assert list(found.errors) == [2, 0]
    assert (set(found.stacks), found.exits, found.started) == ({3}, {1: -9}, frozenset(range(4)))
    assert cause(found, launch).rank == 1


def test_torchruns_numbers_are_translated_where_ranks_are_spread(launch):
    launch.agent_log(0).write_text("  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 10)\n")
    found = gather(launch, ranks={0: 0, 1: 2, 2: 1, 3: 3})
    assert found.exits == {2: -9}


def test_without_a_word_from_any_rank_torchruns_is_repeated(launch):
    assert cause(seen(started=frozenset()), launch) is None
    (launch.path / "launcher.txt").write_text("starting\nOSError: no such interface\nbye\n")
    assert last_error(launch, 1).startswith("OSError: no such interface")


@pytest.mark.parametrize("code", [-9, 137])
def test_a_torchrun_that_somebody_ended_left_no_last_error_of_its_own(launch, code):
    (launch.path / "launcher.txt").write_text("an Error that did no harm\n")
    assert last_error(launch, code) == f"torchrun was ended by SIGKILL ({launch.path})"


@pytest.mark.parametrize("code", [-signal.SIGTERM, 143])
def test_a_torchrun_that_failed_comes_before_those_that_were_ended_for_it(launch, code):
    said = "RuntimeError: the server socket has failed to listen, code: EADDRINUSE"
    ended = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"
    launch.agent_log(0).write_text(f"Traceback\n{ended}\n  error_file: <N/A>\n")
    launch.agent_log(1).write_text(f"{said}\nmore\n")
    assert last_error(launch, code).startswith(said)


@pytest.mark.parametrize("code", [-signal.SIGTERM, 143])
def test_a_torchrun_that_was_told_to_end_and_knows_no_reason(launch, code):
    launch.agent_log(0).write_text("Received 15 death signal, shutting down workers\n")
    assert last_error(launch, code) == f"torchrun was ended by SIGTERM ({launch.path})"
