"""Communication hooks on three real ranks: the probe's wrapper trains as the plain one, and stamps what is sent."""

from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks

SCRIPT = Path(__file__).with_name("hook_ranks.py")
HOOKS = ("none", "fp16", "bf16", "powersgd")


pytestmark = pytest.mark.slow  # one training of two ranks a hook


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By hook, what each of the ranks found."""
    found = run_ranks(SCRIPT, 3, tmp_path_factory.mktemp("ranks") / "store", *HOOKS)
    return {hook: [rank[hook] for rank in found] for hook in HOOKS}


@pytest.mark.parametrize("hook", HOOKS)
def test_loss_and_weights_are_those_of_the_plain_wrapper_to_the_bit(trained, hook):
    assert [(rank["same_losses"], rank["same_weights"]) for rank in trained[hook]] == [(True, True)] * 3


@pytest.mark.parametrize("hook", HOOKS)
def test_all_ranks_have_the_same_weights_and_they_learn(trained, hook):
    assert len({rank["sum"] for rank in trained[hook]}) == 1
    assert all(rank["losses"][-1] < rank["losses"][0] for rank in trained[hook])


def test_each_hook_trains_in_its_own_way(trained):
    assert len({trained[hook][0]["sum"] for hook in HOOKS}) == len(HOOKS)


def test_bytes_are_those_on_the_wire(trained):
    for hook, size in (("none", 4), ("fp16", 2), ("bf16", 2)):
        rank = trained[hook][0]
        assert rank["wire"] == [b // 4 * size for b in rank["buckets"]]
        assert [row[3] for row in rank["rows"]] == rank["wire"]


def test_power_sgd_sends_three_small_messages_a_bucket(trained):
    rank = trained["powersgd"][0]
    assert len(rank["wire"]) == 3 * len(rank["buckets"])
    # A 128 x 128 weight goes as a column and a row of 128, its bias as it is; all in fp32.
    assert sum(rank["wire"]) == 6 * (128 + 128 + 128) * 4
    assert rank["wire"] == trained["powersgd"][1]["wire"]


@pytest.mark.parametrize("hook", HOOKS)
def test_stamps_are_in_order_and_only_a_bucket_s_first_message_waited_for_gradients(trained, hook):
    for rank in trained[hook]:
        each = len(rank["rows"]) // len(rank["buckets"])
        for seq, (at, _kind, _group, _size, ready, launch, done, *_) in enumerate(rank["rows"]):
            assert at == seq
            assert 0 < launch <= done
            assert 0 < ready <= launch if seq % each == 0 else ready == 0
