"""Every optimizer of the shipped models trains with every strategy, in the forms that CPUs and accelerators take."""

from pathlib import Path

import pytest
from support.gloo_ranks import run_ranks

from scaling.settings.parallel import STRATEGIES

pytestmark = pytest.mark.slow  # four ranks train 84 times

SCRIPT = Path(__file__).with_name("optimizer_ranks.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(SCRIPT, 4, tmp_path_factory.mktemp("optimizers") / "store", 4)


@pytest.mark.parametrize("form", ["foreach", "fused"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_are_those_of_one_tensor_after_the_other_on_one_rank(ranks, strategy, optimizer, form):
    for trained, _, _ in ranks:
        whole = trained[f"single {optimizer} loop"]
        assert trained[f"{strategy} {optimizer} loop"] == pytest.approx(whole, rel=1e-6)
        assert trained[f"{strategy} {optimizer} {form}"] == pytest.approx(whole, rel=1e-6)
        assert whole[0] > whole[1] > whole[2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_and_with_the_loss_scaled_as_in_fp16(ranks, strategy):
    for trained, scaled, _ in ranks:
        for losses in scaled[strategy]:
            assert losses == pytest.approx(trained["single adamw loop"], rel=1e-6)


@pytest.mark.parametrize("strategy", ["tp", "fsdp_tp", "hsdp_tp"])
def test_an_overflow_of_one_rank_skips_the_step_of_all_that_share_its_gradients(ranks, strategy):
    """Over a whole mesh, or over one of two copies: gradients are summed over those before, so all see it."""
    told = [halved[strategy] for _, _, halved in ranks]
    assert told == [True, True, strategy != "hsdp_tp", strategy != "hsdp_tp"]
