"""`scaling run` on simulated accelerators, from the plan to the page, held against what the simulation knows."""

import json

import pytest
from support.commands import run_scaling

pytestmark = pytest.mark.slow

SIM = (
    "topology=local",
    "topology.device=sim",
    "topology.simulated.link_us=20",
    "topology.simulated.link_gb_s=5",
    "world_sizes=[1,2]",
    "measure=quick",
    "measure.budget_s=20",
    "measure.rounds_max=3",
    "tracking=disabled",
)
GPT2 = (
    "model=gpt2",
    "model.layers=2",
    "model.width=128",
    "model.heads=4",
    "model.vocabulary=2000",
    "model.sequence=128",
    "batch_per_rank=32",
    "topology.simulated.launch_us=0.1",
)


def run(folder, *overrides, said=""):
    """The results, what was printed, and the page, of a run that ends whole."""
    done = run_scaling("run", *SIM, *overrides, f"run_dir={folder / 'run'}", cwd=folder)
    assert done.returncode == 0, done.stderr
    answer = " ".join(done.stdout.split())
    assert "SIMULATED accelerators" in answer
    assert said in answer
    page = (folder / "run/report.html").read_text()
    assert "SIMULATED" in page
    document = json.loads((folder / "run/analysis.json").read_text())
    assert document["run"]["simulated"]
    assert document["run"]["device_name"] == "Simulated accelerator"
    assert document["quality"]["contended_blocks"] == 0  # a virtual clock is not compared with processor time
    return document, done


def transfer_ms(size):
    """Of an all-reduce over two ranks, by the link above."""
    return 0.020 + size / 5e6


def held_to_the_link(document):
    """Each bucket's transfer, and each point of the curve, are the link's to the last microsecond."""
    point = document["points"][-1]
    assert point["comm"]["buckets"]
    for bucket in point["comm"]["buckets"]:
        assert bucket["transfer_ms"]["value"] == pytest.approx(transfer_ms(bucket["bytes"]), abs=1e-3)
    (level,) = document["fabric"]["levels"]
    for at in level["curve"]:
        if at["collective"] == "all_reduce":
            assert at["time_us"]["value"] == pytest.approx(1e3 * transfer_ms(at["bytes"]), rel=2e-3)
    assert level["busbw_gbit_s"]["value"] == pytest.approx(40, rel=1e-3)
    return point


def test_a_model_whose_compute_is_known(tmp_path):
    """60 ms of sleeps, of which backward hides most of 16 MiB in two buckets; the last one is exposed."""
    document, done = run(tmp_path, "model=synthetic", said="SYNTHETIC compute")
    # sleeps of the virtual clock say nothing of this machine's time
    assert "no step was timed" in done.stderr
    _, two = document["points"]
    assert two["arms_ms"]["bare_one"]["value"] == pytest.approx(60, rel=0.005)
    assert held_to_the_link(document) is two
    last = two["comm"]["buckets"][-1]
    exposed = two["parts_ms"]["exposed_transfer"]["value"]
    # The last layer's gradient completes the last bucket: all of its transfer is exposed.
    assert exposed == pytest.approx(transfer_ms(last["bytes"]), rel=0.02)
    step = two["step_ms"]["value"]
    assert step == pytest.approx(two["arms_ms"]["bare_one"]["value"] + exposed, rel=0.005)
    assert two["closure"]["value"] == pytest.approx(1, abs=0.005)
    assert two["straggler"] is None


def test_a_rank_that_is_late_in_its_forward(tmp_path):
    document, _ = run(
        tmp_path, "model=synthetic", "inject.rank=1", "inject.compute_ms=30", said="Rank 1 is late"
    )
    point = document["points"][-1]
    assert point["straggler"]["rank"] == 1
    assert point["straggler"]["phase"] == "forward"
    assert point["loss"]["straggler"]["value"] * point["step_ms"]["value"] == pytest.approx(30, rel=0.02)


@pytest.mark.parametrize(
    ("mesh", "rank"),
    [
        (("parallel=tp", "world_sizes=[1,2]"), 1),
        (("parallel=tp", "world_sizes=[2]", "topology.simulated.connections=1"), 1),
        (("parallel=fsdp_tp", "world_sizes=[4]"), 2),
    ],
    ids=["tp", "tp, one work queue", "fsdp_tp"],
)
def test_a_slow_loader_of_one_rank_of_a_tensor_group(tmp_path, mesh, rank):
    """A host that takes 60 ms a step for its batch is behind its device, which computes 30 of them.

    The others of its group wait for it in their first layer, and no phase of theirs is blamed.
    """
    slow = (f"inject.rank={rank}", "inject.input_ms=60")
    size = ("topology.ranks_per_host=4", "model.param_mb=8", "model.layers=2", "model.activations=1024")
    document, done = run(tmp_path, "model=synthetic", *mesh, *size, *slow, "measure.budget_s=120")
    point = document["points"][-1]
    assert (point["straggler"]["rank"], point["straggler"]["phase"]) == (rank, "input")
    step = point["step_ms"]["value"]
    assert step >= 60
    without = 30 + point["parts_ms"]["exposed_transfer"]["value"]
    assert point["loss"]["straggler"]["value"] * step == pytest.approx(step - without, rel=0.05)
    main = next(v for v in document["verdicts"] if v["world_size"] == point["world_size"])
    assert main["cause"] in ("straggler", "input")
    assert f"ank {rank}" in " ".join(done.stdout.split())


def test_gpt2_whose_kernels_take_their_time(tmp_path):
    """A real language model with AdamW, whose tryout times its steps on the device."""
    document, done = run(tmp_path, *GPT2)
    assert "no step was timed" not in done.stderr
    assert "tryout" in done.stderr
    point = held_to_the_link(document)
    assert point["closure"]["value"] == pytest.approx(1, abs=0.02)
    assert point["memory"]["harness_bytes"] == 0
    assert point["memory"]["optimizer_bytes"] >= 2 * point["memory"]["parameters_bytes"]


def test_a_cnn_with_batch_normalisation(tmp_path):
    """DDP broadcasts its buffers, and the waits there are the broadcast's own."""
    fast = "topology.simulated.launch_us=0.1"
    document, _ = run(tmp_path, "model=highmem_cnn_bn", "batch_per_rank=64", fast)
    point = held_to_the_link(document)
    assert any("DDP broadcasts before forward" in said for said in document["quality"]["warnings"])
    waited = point["parts_ms"]["exposed_transfer"]["value"]
    last = point["comm"]["buckets"][-1]["transfer_ms"]["value"]
    assert waited > last + 0.02  # the broadcast's latency is exposed too
    assert point["closure"]["value"] == pytest.approx(1, abs=0.02)


NORMS = ("model=highmem_cnn_sync_bn", "batch_per_rank=64", "topology.simulated.launch_us=0.1")


def test_norms_over_all_ranks_are_collectives_of_the_step(tmp_path):
    """Three layers gather in forward and reduce in backward; alone they send nothing."""
    document, _ = run(tmp_path, *NORMS)
    one, two = document["points"]
    assert one["arms_ms"]["bare_one"]["value"] == pytest.approx(two["arms_ms"]["bare_all"]["value"], rel=1e-3)
    found = {(c["kind"], c["phase"]): c for c in two["comm"]["collectives"]}
    gathers = found["all_gather", "forward"]
    size = 4 * (2 * 256 + 1)  # of a layer's means, deviations and count, on each rank
    assert (gathers["calls"], gathers["bytes"]) == (3, 3 * 2 * size)
    known = 3 * transfer_ms(size)  # a rank receives the other one's
    assert gathers["transfer_ms"]["value"] == pytest.approx(known, abs=1e-3)
    assert gathers["exposed_transfer_ms"]["value"] == pytest.approx(known, abs=1e-3)
    assert gathers["exposed_skew_ms"]["value"] == pytest.approx(0, abs=1e-3)
    assert found["all_reduce", "backward"]["calls"] > 3  # the layers' and the buckets'
    assert found["broadcast", "forward"]["calls"] == 1  # the buffers
    assert two["closure"]["value"] == pytest.approx(1, abs=0.02)
    assert two["straggler"] is None
    step, parts = two["step_ms"]["value"], two["parts_ms"]
    assert sum(part["value"] for part in parts.values() if part) == pytest.approx(step, rel=0.005)


def test_a_rank_that_is_late_for_a_norm_is_found(tmp_path):
    """It comes to the first layer 30 ms late in its forward. The other rank has no gradient to wait with by then."""
    document, _ = run(
        tmp_path, *NORMS, "inject.rank=1", "inject.compute_ms=30", "world_sizes=[2]", said="is link bandwidth"
    )
    (point,) = document["points"]
    linked = point["parts_ms"]["exposed_transfer"]["value"] / point["step_ms"]["value"]
    assert linked == pytest.approx(0.49, abs=0.01)  # twice what the late rank costs, so named first
    assert [verdict["cause"] for verdict in document["verdicts"]] == ["link_bandwidth", "straggler"]
    assert point["loss"]["link_bandwidth"]["value"] == pytest.approx(linked, abs=0.005)
    assert point["loss"]["unexplained"]["value"] == pytest.approx(0, abs=0.005)
    assert (point["straggler"]["rank"], point["straggler"]["phase"]) == (1, "forward")
    assert point["straggler"]["cost_ms"]["value"] == pytest.approx(30, rel=0.02)
    assert point["parts_ms"]["exposed_skew"]["value"] == pytest.approx(15, rel=0.02)  # mean of both ranks
    gathers = next(c for c in point["comm"]["collectives"] if c["kind"] == "all_gather")
    assert gathers["exposed_skew_ms"]["value"] == pytest.approx(15, rel=0.02)
    assert point["closure"]["value"] == pytest.approx(1, abs=0.02)


SHARDED = ("model=synthetic", "model.layers=2", "model.param_mb=32", "model.compute_ms=40")


def test_units_that_stay_gathered_are_predicted_from_ones_that_do_not(tmp_path):
    """Only a setting of fully_shard differs, and backward gathers nothing."""
    slow = "topology.simulated.link_gb_s=1"  # so that gathers are exposed
    words = (*SIM, *SHARDED, slow, "parallel=fsdp", "world_sizes=[2]", "measure.budget_s=300")
    kept, measured = "fsdp.reshard_after_forward=false", {}
    for name, more in {"freed": (), "kept": (kept,)}.items():
        done = run_scaling("run", *words, *more, f"run_dir={tmp_path / name}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (*_, point) = json.loads((tmp_path / name / "analysis.json").read_text())["points"]
        measured[name] = point["step_ms"]["value"]
    done = run_scaling("predict", str(tmp_path / "freed"), kept, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert measured["kept"] < 0.98 * measured["freed"]
    assert point["step_ms"]["value"] == pytest.approx(measured["kept"], rel=0.02)


def test_copies_with_a_late_rank_share_the_wire_of_each_rank(tmp_path):
    """A copy's reduce-scatters overlap the all-reduces, at different times on the two copies of a late rank."""
    rate, late = 1, ("inject.rank=1", "inject.compute_ms=30")
    hsdp = ("parallel=hsdp", "parallel.shard=2", "world_sizes=[4]", "topology.ranks_per_host=4")
    more = (
        f"topology.simulated.link_gb_s={rate}",
        "fsdp.reshard_after_forward=false",
        "measure.budget_s=300",
    )
    document, _ = run(tmp_path, *SHARDED, *hsdp, *late, *more)
    (point,) = document["points"]
    moved = 16 * 2**20  # each kind's over a rank's wire: 1/2 of 32 MiB, or 2 x 1/2 of 16
    assert len(point["comm"]["collectives"]) == 3
    for sent in point["comm"]["collectives"]:
        assert sent["transfer_ms"]["value"] == pytest.approx(2 * 0.020 + moved / (rate * 1e6), rel=0.005)
    assert point["straggler"]["rank"] == 1
    assert point["straggler"]["cost_ms"]["value"] == pytest.approx(30, rel=0.02)
    assert point["closure"]["value"] == pytest.approx(1, abs=0.005)


def test_hsdp_over_four_is_predicted_from_fsdp_over_two(tmp_path):
    """The run's own kernel times and link; a strategy that is not known is refused, and so is a machine without g++."""
    measured = {}
    for name, strategy in {
        "two": ("parallel=fsdp", "world_sizes=[2]"),
        "four": ("parallel=hsdp", "parallel.shard=2", "world_sizes=[4]", "topology.ranks_per_host=4"),
    }.items():
        words = (*SIM, *SHARDED, "measure.budget_s=300", *strategy, f"run_dir={tmp_path / name}")
        done = run_scaling("run", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        measured[name] = json.loads((tmp_path / name / "analysis.json").read_text())["points"][-1]
    asked = ("parallel=hsdp", "parallel.shard=2", "world_sizes=[4]", "topology.ranks_per_host=4", "--json")
    done = run_scaling("predict", str(tmp_path / "two"), *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert point["step_ms"]["value"] == pytest.approx(measured["four"]["step_ms"]["value"], rel=0.05)
    assert (point["replicate"], point["shard"]) == (2, 2)
    assert point["memory"]["parameters_bytes"] == measured["four"]["memory"]["parameters_bytes"]
    bare = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}
    for words, said, env in (
        (("parallel=single",), "parallel=single: one or more of ddp, fsdp", {}),
        (("parallel=hsdp", "parallel.shard=3", *asked[2:4]), "does not fit world size 4", {}),
        (("parallel=hsdp",), "the simulated accelerator needs g++", bare),
    ):
        done = run_scaling("predict", str(tmp_path / "two"), *words, cwd=tmp_path, env=env)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr.splitlines()[-1]
