"""A rank that is killed, stops, hangs, raises, exits, crashes or runs out of memory, in each phase of a step.

A run meets one fault a launch, and its last launch is whole. The fixture `faulty` asserts that each launch
ends in time and leaves nothing behind.
"""

import pytest

pytestmark = pytest.mark.slow

KILLED = ("failed", 1, "rank 1 was ended by SIGKILL")
STOPPED = ("timeout", 1, "rank 1 hung (stopped by a signal)")
HUNG = ("timeout", 1, "rank 1 hung")
SLOW_S = 20
"""What the step of `compute` takes (faulty.py), longer than the longest that a hang stays unseen."""
MAKING = ("data.workers=1", "batch_per_rank=8")
"""A data worker a rank."""


def assert_survived(ended, *expected):
    """Each fault ended its launch with its cause and rank named; then everything was measured."""
    assert ended.code == 0, (ended.out, ended.err)
    launches = ended.status["launches"]
    assert [launch["state"] for launch in launches] == [state for state, _, _ in expected] + ["done"], (
        launches
    )
    for launch, (_, rank, said) in zip(launches, expected, strict=False):
        assert said in launch["error"], launch["error"]
        assert launch["rank"] == rank, launch
        assert (
            f"launch {launch['index']} {'hung' if launch['state'] == 'timeout' else 'failed'}: " in ended.err
        )
        assert launch["error"][:100] in " ".join(ended.err.split())
    assert [trial["launches"] for trial in ended.analysis["trials"]] == [[len(expected)]]


def assert_hang_is_told(ended, index, function):
    """Where it hung, by its stack, and in which collective, by the flight recorder."""
    error = ended.launch(index)["error"]
    assert f"in {function}" in error, error
    assert f"stack: {ended.folder.name}/launches/{index}/stack-1.json" in error
    assert (ended.folder / f"launches/{index}/stack-1.json").exists()


def test_stopped_in_a_collective(faulty):
    ended = faulty("stop@collective@1@20")
    assert_survived(ended, STOPPED)
    assert_hang_is_told(ended, 0, "_engine_run_backward")
    assert "the last collective it entered: gloo:all_reduce number" in ended.launch(0)["error"]
    assert "among 2 ranks" in ended.launch(0)["error"]


def test_segmentation_fault_in_forward_then_a_hang_in_the_input(faulty):
    ended = faulty("segfault@forward@1@30", "sleep@input@1@30")
    assert_survived(ended, ("failed", 1, "rank 1 was ended by SIGSEGV"), HUNG)
    assert "Fatal Python error: Segmentation fault" in (ended.folder / "launches/0/log-1.txt").read_text()
    assert_hang_is_told(ended, 1, "sleep")


FAULTS = {
    "killed at start, then in the input": {"kill@start@1@0": KILLED, "kill@input@1@30": KILLED},
    "killed in forward, then in the optimizer": {"kill@forward@1@30": KILLED, "kill@optimizer@1@30": KILLED},
    # Rank 0 starts every block; the others must not wait for it for ever.
    "killed in a collective, then rank 0": {
        "kill@collective@1@20": KILLED,
        "kill@backward@0@30": ("failed", 0, "rank 0 was ended by SIGKILL"),
    },
    "stopped at start, then in the input": {"stop@start@1@0": STOPPED, "stop@input@1@30": STOPPED},
    "hangs in Python at start, then in forward": {"sleep@start@1@0": HUNG, "sleep@forward@1@30": HUNG},
    "sleeps in the first forward, then in the first with its peer": {
        "sleep@bench@1@1": HUNG,
        "sleep@forward@1@13": HUNG,
    },
    "spins on a device that hangs": {"spin@forward@1@30": HUNG},
    "ends without an error": {"vanish@forward@1@30": ("failed", 1, "rank 1 ended without an error message")},
}
"""What a rank does (faulty.py), one launch each, and how that launch has to end."""


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_each_launch_ends_with_the_cause_and_the_rank_of_its_fault(faulty, faults):
    ended = faulty(*faults)
    assert_survived(ended, *faults.values())
    for index, (fault, expected) in enumerate(faults.items()):
        if expected in (STOPPED, HUNG):
            assert_hang_is_told(ended, index, fault.partition("@")[0])


def test_a_sharded_launch_ends_with_the_rank_that_is_killed_or_stops_in_it(faulty):
    """Each block trains a copy of the model, which goes on counting where the model itself stood."""
    faults = {"kill@forward@1@8": KILLED, "stop@forward@1@8": STOPPED}
    ended = faulty(*faults, overrides=("parallel=fsdp",))
    assert_survived(ended, *faults.values())


def test_killed_in_the_warm_up_then_before_the_last_line_of_its_records(faulty):
    ended = faulty("kill@backward@1@3", "kill@end@1@0")
    assert_survived(ended, KILLED, KILLED)
    assert "in warm-up of world size 2" in ended.launch(0)["error"]
    assert "in clock offsets at the end" in ended.launch(1)["error"]


def test_killed_after_the_last_line_of_its_records_it_has_measured_all_the_same(faulty):
    ended = faulty("kill@close@1@0")
    assert ended.code == 0, (ended.out, ended.err)
    (launch,) = ended.status["launches"]
    assert (launch["state"], launch["rank"], launch["finished"]) == ("failed", 1, [2])
    assert "rank 1 was ended by SIGKILL" in ended.err
    assert "its records were whole by then" in ended.err
    assert ended.analysis["trials"][0]["launches"] == [0]


def test_hangs_with_the_interpreters_lock(faulty):
    """No Python runs in it any more, so it cannot say where it is: its log has the stacks."""
    ended = faulty("hold@forward@1@30")
    assert_survived(ended, HUNG)
    assert "it left no stack; log: run/launches/0/log-1.txt" in ended.launch(0)["error"]
    assert " in hold\n" in (ended.folder / "launches/0/log-1.txt").read_text()


def test_a_data_worker_stops_then_hangs(faulty):
    """A fetch has torch's own time limit, which misses a stopped worker; making batches ahead has the launch's."""
    ended = faulty("stop@sample@1@400", "sleep@sample@1@400", of="data", overrides=MAKING)
    hung = ("timeout", 1, "rank 1 hung")
    late = ("failed", 1, "no batch from the data workers: DataLoader timed out after 8.4")
    stood = ended.launch(1)["state"]
    assert_survived(ended, hung, {"timeout": hung, "failed": late}[stood])
    assert "/scaling/worker/data/feed.py:" in ended.launch(0)["error"]


def test_a_data_worker_is_killed_then_raises(faulty):
    ended = faulty("kill@sample@1@400", "throw@sample@1@400", of="data", overrides=MAKING)
    killed = ("failed", 1, "DataLoader worker (pid")
    assert_survived(ended, killed, ("failed", 1, "in a data worker: ValueError: out of cheese"))


def test_raises_then_exits(faulty):
    ended = faulty("throw@optimizer@1@30", "exit@forward@1@30")
    assert_survived(ended, ("failed", 1, "ValueError: out of cheese"), ("failed", 1, "SystemExit: 3"))
    assert "faulty.py:" in ended.launch(0)["error"]


def test_ends_without_an_error_at_start_then_while_the_other_waits_for_it(faulty):
    ended = faulty("vanish@start@1@0", "vanish@end@1@0")
    # At a meeting, in no collective; beside other programs the first may come while Gloo connects the two.
    gone = ("failed", 1, "rank 1 ended without an error message; rank 0 ")
    assert_survived(ended, gone, gone)
    assert "waited for it in " in ended.launch(1)["error"]


def test_out_of_memory_in_the_first_step_is_agreed_on(faulty):
    ended = faulty("memory@forward@1@1", overrides=("world_sizes=[1,2]",))
    assert [launch["state"] for launch in ended.status["launches"]] == ["done"], ended.err
    assert ended.code == 3
    assert {t["world_size"]: t["status"] for t in ended.analysis["trials"]} == {1: "done", 2: "oom"}


def test_out_of_memory_later_ends_the_launch_and_is_not_tried_again(faulty):
    ended = faulty("memory@backward@1@30", overrides=("world_sizes=[1,2]",))
    assert ended.code == 3
    first = ended.launch(0)
    assert (first["state"], first["rank"]) == ("failed", 1)
    assert "can't allocate memory" in first["error"]
    assert ended.launch(1)["world_sizes"] == [1]
    assert {t["world_size"]: t["status"] for t in ended.analysis["trials"]} == {1: "done", 2: "oom"}


def test_a_trial_that_fails_every_time_is_given_up_and_the_finished_one_kept(faulty):
    ended = faulty(*["throw@forward@1@30"] * 3, overrides=("world_sizes=[1,2]",))
    assert ended.code == 3
    assert {t["world_size"]: t["status"] for t in ended.analysis["trials"]} == {1: "done", 2: "failed"}
    assert [launch["world_sizes"] for launch in ended.status["launches"]] == [[1, 2]] * 3 + [[1]]
    assert ended.analysis["points"][0]["step_ms"]["value"] > 0


def test_what_an_earlier_launch_finished_is_not_measured_again(faulty):
    ended = faulty("", "kill@forward@1@30", overrides=("repeats=2",))
    assert ended.code == 0
    assert [launch["state"] for launch in ended.status["launches"]] == ["done", "failed", "done"]
    assert ended.analysis["trials"][0]["launches"] == [0, 2]


def test_a_first_step_that_takes_longer_than_a_hang_may_is_waited_for(faulty):
    """In a collective: its peer waits for it."""
    ended = faulty("compute@forward@1@13")
    assert ended.code == 0, (ended.out, ended.err)
    (launch,) = ended.status["launches"]
    assert launch["state"] == "done"
    assert launch["duration_s"] > SLOW_S


def test_what_hangs_twice_in_the_same_way_is_not_tried_a_third_time(faulty):
    ended = faulty(*["sleep@bench@1@1"] * 3)
    assert ended.code == 1
    first, second = ended.status["launches"]
    assert (first["state"], first["rank"]) == ("timeout", 1)
    assert first["stage"] == second["stage"] == "warm-up"
    assert ended.status["trials"][0]["status"] == "timeout"
    assert "nothing was measured: rank 1 hung in warm-up at" in " ".join(ended.err.split())
