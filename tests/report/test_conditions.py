import dataclasses

from scaling.report.conditions import conditions
from scaling.settings.parallel import Fsdp, Parallel
from scaling.settings.run import Vary


def test_conditions_say_what_is_not_real(sample):
    shown = dict(conditions(sample.bad().run, sample.bad_plan()))
    assert "SYNTHETIC compute" in shown["model"]
    assert "scaled down" in shown["note"]
    assert shown["link"] == "200 Mbit/s a host (shaped)"
    assert shown["INJECTED"] == "inject.rank=1, inject.compute_ms=33"
    assert "INJECTED" not in dict(conditions(sample.good().run, sample.plan()))


def test_what_varies_between_cases_is_no_setting_of_the_run(sample):
    def shown(**changes):
        by_cases = dataclasses.replace(sample.spec(), batches=(8,), checkpointing=True, **changes)
        return dict(conditions(sample.good().run, sample.plan(by_cases)))

    assert "checkpointing=true" in shown()["settings"]
    assert shown()["precision"] == "fp32"
    varied = shown(vary=Vary(checkpointing=(False, True), precision=("fp32", "bf16")))
    assert "checkpointing" not in varied.get("settings", "")
    assert varied["precision"] == "fp32, bf16"


def test_how_ranks_were_bound_to_cores_is_said(sample):
    def launched(binding):
        return dict(conditions(dataclasses.replace(sample.good().run, binding=binding), sample.plan()))[
            "launch"
        ]

    assert launched("bound (node)").endswith(", ranks bound (node)")
    assert launched("not bound: numactl is missing").endswith(", ranks not bound: numactl is missing")
    assert "bound" not in launched("")


def test_a_strategy_other_than_ddp_is_named_with_its_mesh_and_settings(sample):
    def shown(**changes):
        spec = dataclasses.replace(sample.spec(), world_sizes=(1, 8), **changes)
        return dict(conditions(sample.good().run, sample.plan(spec)))

    hsdp = Parallel(name="hsdp", replicate=-1, shard=2)
    found = shown(parallel=hsdp, fsdp=Fsdp(reshard=0, prefetch=2))
    assert found["parallel"] == "hsdp, replicate 4 x shard 2 at 8 ranks"
    assert found["settings"] == "fsdp.reshard_after_forward=false, fsdp.prefetch=2"
    divided = Parallel(name="tp", replicate=1, tensor=-1, sequence=True)
    assert shown(parallel=divided)["parallel"].startswith("tp, tensor 8 at 8 ranks, tokens divided")
    assert "parallel" not in shown()
