"""Batches from real worker processes: timed, stopped between blocks, and as many ready as the arm left."""

import signal
import subprocess
import sys
import tempfile
import time

import pytest
import torch
from support.commands import environment, start_python
from support.processes import alive, captured, wait_until
from torch.utils.data import Dataset, IterableDataset

from scaling.errors import InputError
from scaling.launchers.failure.cause import OF_ITS_OWN
from scaling.settings.run import Data
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import HostClock
from scaling.worker.data.feed import Feed, Loader, NoBatchError, Shards, find_dataset

MS = 1_000_000
WAIT_S = 20


class Numbers(Dataset):
    """Sample i is i; each takes `seconds` of sleep."""

    def __init__(self, size=64, seconds=0.0):
        self.size, self.seconds = size, seconds

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.tensor([index]), 0


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return ((torch.tensor([i]), 0) for i in range(self.size))


class Broken(Numbers):
    def __getitem__(self, index):
        raise ValueError("no such picture")


class Own(Numbers):
    """Its own batches."""

    @staticmethod
    def collate_fn(samples):
        return len(samples), "mine"


@pytest.fixture
def open_loader():
    opened = []

    def make(dataset, workers=2, batch=4, prefetch=2, timeout_s=30.0):
        data = Data(name="own", target="a.b", workers=workers, prefetch=prefetch)
        loader = Loader(dataset, data, batch=batch, rank=0, seed=0, pin=False, timeout_s=timeout_s)
        opened.append(loader)
        return loader

    yield make
    for loader in opened:
        loader.close()


def test_made_up_batches_come_in_turn_and_cost_nothing():
    feed = Feed(["a", "b"])
    assert [feed.fetch() for _ in range(3)] == ["a", "b", "a"]
    assert feed.cost() == (-1, -1)
    assert feed.fed_ns(HostClock(), Cpu().load) == -1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_go_on_beyond_the_dataset_s_end(open_loader, workers):
    loader = open_loader(Numbers(size=6), workers=workers)
    seen = [int(i) for _ in range(6) for i in loader.fetch()[0]]
    assert sorted(seen) == sorted([*range(6)] * 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_batch_takes_to_make_is_told(open_loader, workers):
    loader = open_loader(Numbers(seconds=0.01), workers=workers)
    for _ in range(4):
        loader.fetch()
    wall_ns, cpu_ns = loader.cost()
    assert wall_ns >= 40 * MS  # four samples of 10 ms
    assert 0 < cpu_ns < wall_ns  # sleeping needs no core
    assert loader.cost() == (-1, -1)


def test_a_pause_is_no_part_of_a_batch_and_nothing_is_made_in_it(open_loader):
    loader = open_loader(Numbers(seconds=0.02), workers=1, prefetch=8)
    loader.fetch()
    loader.pause("arm")
    time.sleep(0.1)  # the sample that was begun is finished
    before = loader._ready()
    time.sleep(0.5)
    assert loader._ready() == before
    loader.cost()
    loader.resume()
    for _ in range(2):
        loader.fetch()
    assert loader.cost()[0] < 300 * MS


def test_a_block_finds_as_many_batches_as_its_arm_left(open_loader):
    loader = open_loader(Numbers(), workers=2, prefetch=2)
    loader.prepare("hungry", 1)
    loader.fetch()
    wait_until(lambda: loader._ready() == 4, every_s=0.005)
    loader.pause("full")
    assert loader._levels == {"full": 4}
    for _ in range(4):
        loader.fetch()
    loader.pause("hungry")
    assert loader._levels["hungry"] <= 1
    loader.prepare("full", 1)
    assert loader._ready() == 4
    loader.prepare("hungry", 1)
    assert loader._ready() == loader._levels["hungry"]


def test_only_batches_that_are_next_in_order_count_as_ready(open_loader):
    loader = open_loader(Numbers(), workers=2)
    loader._gate.made[1] = 2  # the second worker's two; the first has made none
    assert loader._ready() == 0
    loader._gate.made[0] = 1
    assert loader._ready() == 2


def test_a_fetch_whose_batch_is_there_takes_no_part_of_its_making(open_loader):
    loader = open_loader(Numbers(seconds=0.05), workers=1)
    loader.fetch()
    assert 0 < loader.fed_ns(HostClock(), Cpu().load) < 100 * MS  # making one takes 200


def test_without_workers_a_fed_fetch_is_the_copy_alone(open_loader):
    loader = open_loader(Numbers(seconds=0.05), workers=0)
    assert 0 <= loader.fed_ns(HostClock(), Cpu().load) < 50 * MS


def test_an_iterable_dataset_is_begun_again(open_loader):
    loader = open_loader(Count(4), workers=1, batch=2)
    assert [loader.fetch()[0].flatten().tolist() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]
    assert loader.cost()[0] > 0


def test_an_iterable_dataset_without_samples_says_so(open_loader):
    with pytest.raises(RuntimeError, match="without a sample"):
        open_loader(Count(0), workers=1).fetch()


def test_a_dataset_collates_as_it_likes(open_loader):
    assert list(open_loader(Own(), workers=1).fetch()) == [4, "mine"]


def test_an_error_in_a_worker_says_what_it_was(open_loader):
    with pytest.raises(NoBatchError, match="in a data worker: ValueError: no such picture"):
        open_loader(Broken(), workers=1).fetch()
    assert NoBatchError.__name__ == OF_ITS_OWN  # so the launcher takes it for this rank's own


def test_without_workers_an_error_is_the_datasets_own(open_loader):
    with pytest.raises(ValueError, match="no such picture"):
        open_loader(Broken(), workers=0).fetch()


@pytest.mark.slow
def test_a_worker_that_never_ends_is_given_up(open_loader):
    with pytest.raises(NoBatchError, match="no batch from the data workers: DataLoader timed out"):
        open_loader(Numbers(seconds=3600), workers=1, timeout_s=1.0).fetch()


def test_ranks_share_a_dataset_out_at_the_world_size_that_is_set():
    ranks = [Shards(Numbers(size=8), rank=rank, seed=3) for rank in range(2)]
    for shards in ranks:
        shards.world_size = 2
    streams = [iter(shards) for shards in ranks]
    epochs = [[{next(stream) for _ in range(4)} for stream in streams] for _ in range(2)]
    for first, second in epochs:
        assert first | second == set(range(8))
    assert epochs[0] != epochs[1]  # shuffled anew
    ranks[0].world_size = 1
    assert {next(streams[0]) for _ in range(8)} == set(range(8))


def test_sub_groups_read_the_same():
    ranks = [Shards(Numbers(size=8), rank=rank, seed=3) for rank in range(4)]
    for shards in ranks:
        shards.world_size = 2
    first, second, third, fourth = ([next(stream) for _ in range(4)] for stream in map(iter, ranks))
    assert (first, second) == (third, fourth)
    assert set(first) | set(second) == set(range(8))


@pytest.mark.parametrize("paused", [False, True])
def test_workers_end_with_their_loader(open_loader, paused):
    loader = open_loader(Numbers())
    loader.fetch()
    if paused:
        loader.pause("arm")
    pids = [worker.pid for worker in loader._batches._workers]
    assert len(pids) == 2
    loader.close()
    assert not any(map(alive, pids))


def test_workers_end_with_a_rank_that_is_killed():
    # multiprocessing's own folder stays where it was killed, so it gets one that goes (its sockets want a short path).
    with tempfile.TemporaryDirectory() as scratch:
        assert_workers_end_with_their_rank(scratch)


def assert_workers_end_with_their_rank(scratch):
    text = (
        "import sys, torch\n"
        "from scaling.settings.run import Data\n"
        "from scaling.worker.data.feed import Loader\n"
        "rows = torch.utils.data.TensorDataset(torch.zeros(64, 1), torch.zeros(64))\n"
        "data = Data(target='a.b', workers=2)\n"
        "loader = Loader(rows, data, batch=4, rank=0, seed=0, pin=False, timeout_s=30)\n"
        "loader.fetch()\n"
        "loader.pause('arm')\n"
        "print(*(worker.pid for worker in loader._batches._workers), flush=True)\n"
        "sys.stdin.read()\n"
    )
    rank = start_python("-c", text, env={"TMPDIR": scratch}, stdin=subprocess.PIPE, stderr=None)
    try:
        pids = [int(pid) for pid in rank.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        rank.kill()
        rank.communicate()
    wait_until(lambda: not any(map(alive, pids)))


def test_a_target_that_is_no_dataset():
    with pytest.raises(InputError, match="cannot be imported"):
        find_dataset(Data(target="nowhere.Data"))
    with pytest.raises(InputError, match="returned Fraction, a torch Dataset is expected"):
        find_dataset(Data(target="fractions.Fraction"))
    with pytest.raises(InputError, match="has no samples"):
        find_dataset(Data(target="collections.UserList"))


def test_a_worker_whose_rank_died_before_it_began_ends_at_once():
    text = "from scaling.worker.data.feed import end_with_parent\nend_with_parent(1 << 30, 0)\nprint('goes on')\n"
    worker = captured([sys.executable, "-c", text], timeout=60, env=environment())
    assert (worker.returncode, worker.stdout) == (-signal.SIGKILL, "")
