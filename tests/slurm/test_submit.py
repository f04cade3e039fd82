"""From `scaling submit` to a comparison of two partitions, and what is refused before anything is handed in."""

import json

import pytest
from support.processes import wait_until

from scaling.records.launch import Launches
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan

ON_ONE = ("topology.hosts=1", "topology.ranks_per_host=2", "run_dir=one")
TCP_SHARE = 1448 / 1514
RATES_GBIT_S = {"slurm_pcie": 0.25, "slurm_nvlink": 1.0}


@pytest.fixture(scope="module")
def compared(slurm, tmp_path_factory, at_login):
    """Both partitions with one command, followed to the end."""
    login = at_login(slurm, tmp_path_factory.mktemp("compared"))
    done = login.scaling(
        "submit",
        "-m",
        "topology=slurm_pcie,slurm_nvlink",
        "world_sizes=[1,2]",
        "model=synthetic",
        "model.param_mb=4",
        "model.compute_ms=45",
        "measure=quick",
        "measure.budget_s=15",
        "run_dir=both",
        "--wait",
        timeout=400,
    )
    return login.home / "both", done


def points(run):
    return {p["world_size"]: p for p in json.loads((run / "analysis.json").read_text())["points"]}


def test_two_runs_end_in_a_comparison(compared):
    both, done = compared
    assert done.returncode == 0, done.stderr
    assert "# throughput, other over base" in done.stdout
    assert "COMPLETED" in done.stderr
    document = json.loads((both / "comparison.json").read_text())
    assert document["comparable"]
    assert (both / "comparison.html").is_file()


@pytest.mark.parametrize(("number", "topology"), list(enumerate(RATES_GBIT_S)))
@pytest.mark.measures
def test_each_partition_has_its_links_bandwidth(compared, number, topology):
    comm = points(compared[0] / str(number))[2]["comm"]
    assert comm["busbw_gbit_s"]["value"] == pytest.approx(RATES_GBIT_S[topology] * TCP_SHARE, rel=0.10)


@pytest.mark.measures
def test_the_faster_one_wins_by_what_was_predicted_from_the_slower(compared, slurm, at_login):
    both, _ = compared
    asked = at_login(slurm, both).scaling(
        "predict", "0", "topology=slurm_nvlink", "topology.ranks_per_host=1", "--anyway", "--json"
    )
    assert asked.returncode == 0, asked.stderr
    predicted = next(p for p in json.loads(asked.stdout)["points"] if p["world_size"] == 2)["step_ms"][
        "value"
    ]
    expected = points(both / "0")[2]["step_ms"]["value"] / predicted
    ratio = json.loads((both / "comparison.json").read_text())["points"][1]["ratio"]["value"]
    assert ratio > 1.5
    assert ratio == pytest.approx(expected, rel=0.10)


def test_the_environment_of_every_rank_is_there(compared):
    run = RunFolder(compared[0] / "1")
    (launch,) = Launches(run, read_plan(run))
    for rank in (0, 1):
        assert launch.facts[rank]["hostname"] == f"nvlink{rank + 1}"
        assert launch.facts[rank]["env.SLURM_JOB_PARTITION"] == "nvlink"
        assert launch.facts[rank]["env.GLOO_SOCKET_IFNAME"] == "eth0"


def test_wandb_is_offline_in_the_job(compared):
    runs = sorted(p.name.rsplit("-", 1)[1] for p in (compared[0] / "0/wandb").glob("offline-run-*"))
    assert runs == ["n1", "n2", "summary"]


def test_one_status_shows_all_runs_of_a_comparison(compared, slurm, at_login):
    said = at_login(slurm, compared[0].parent).scaling("status", "both").stdout
    assert said.count("COMPLETED") == 2
    assert "synthetic on slurm_nvlink" in said


REFUSED = [
    (["cluster.partition=nosuch"], "invalid partition specified: nosuch", "cluster.partition"),
    (["topology.hosts=5", "world_sizes=[1,5]"], "", "topology.hosts"),
    (["cluster.gpus_per_node=7"], "", "cluster.gpus_per_node"),
    (["cluster.time=1-0"], "", "cluster.time"),
    (["cluster.constraint=nosuch"], "Invalid feature specification", "cluster.constraint"),
    (["cluster.reservation=nosuch"], "reservation is invalid", "cluster.reservation"),
    (["+cluster.sbatch.bogus=1"], "unrecognized option", "--bogus"),
    (["+cluster.sbatch.array=0-3"], "the tasks of an array would share one", "scaling submit -m"),
    (["+cluster.sbatch.wait=true"], "follows the job", "scaling submit --wait"),
    (["+cluster.sbatch.test-only=true"], "prints the script", "scaling submit --dry-run"),
    (["+cluster.sbatch.exclude=nosuch"], "Invalid node name", "cluster.sbatch.exclude"),
    (["+cluster.sbatch.exclude=pcie1"], "not available", "cluster.sbatch.exclude"),
    (["cluster.time=1"], "told to end up to 180 s before its limit", "cluster.time=19 holds all of it"),
    (["cluster.allocations=2"], "2 x 2 nodes are needed, and partition pcie has 2", "cluster.allocations"),
    (["cluster.time=0"], "not a time limit above 0", "1:30:00"),
    (["run_dir='a \"b\" c'"], "without spaces, quotes", "run_dir"),
]


@pytest.mark.parametrize(("overrides", "words", "key"), REFUSED, ids=[" ".join(r[0]) for r in REFUSED])
def test_what_slurm_would_refuse_is_one_line_and_nothing_is_handed_in(login, overrides, words, key):
    before = all_jobs(login)
    done = login.scaling("submit", "topology=slurm_pcie", "model=synthetic", "run_dir=run", *overrides)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert key in done.stderr
    assert list(login.home.iterdir()) == []
    assert all_jobs(login) == before


def test_a_limit_that_cuts_the_budget_off_is_said(login):
    done = login.scaling("submit", "topology=slurm_pcie", "model=synthetic", "cluster.time=3:30", "--dry-run")
    assert done.returncode == 0
    assert "perhaps after 30 s, and measuring may take" in done.stderr


def test_a_job_for_a_node_that_is_drained_waits_for_it(login):
    """sbatch queues it; its --test-only refuses it."""
    drain = ("scontrol", "update", "nodename=pcie2", "state=drain", "reason=fan")
    assert login.slurm.run(*drain).returncode == 0
    done = login.scaling("submit", "topology=slurm_pcie", "model=synthetic", "run_dir=run")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "scaling: node pcie2: drain (fan): the job waits while too few nodes are left\n"
    wait_until(lambda: "DRAINED" in login.scaling("status", "run").stdout, seconds=20)
    one = login.scaling("submit", "topology=slurm_pcie", "model=synthetic", "cluster.allocations=2", *ON_ONE)
    assert one.returncode == 2
    assert "partition pcie has 1 that get jobs; at most 1 of them fit" in one.stderr


def test_what_is_left_of_several_runs_is_compared_again(login):
    submit = ("submit", "-m", "topology=slurm_pcie,slurm_nvlink", "model=synthetic", "run_dir=both")
    assert login.scaling(*submit, "+cluster.sbatch.hold=true").returncode == 0
    assert login.scaling("cancel", "both").returncode == 0
    done = login.scaling("submit", "--resume", "both")
    assert done.returncode == 0, done.stderr
    first, second, last = (line.split()[1].rstrip(":") for line in done.stdout.splitlines())
    assert "compares them when they have ended, into both" in done.stdout
    said = login.slurm.run("scontrol", "--oneliner", "show", "job", last).stdout
    assert f"Dependency=afterany:{first}(unfulfilled),afterany:{second}(unfulfilled)" in said


def all_jobs(login):
    return set(login.slurm.run("squeue", "--noheader", "--states=all", "--format=%i").stdout.split())


@pytest.mark.slow
def test_the_template_runs_by_hand(login, template):
    """As its own head says: directives and overrides on sbatch's line, nothing filled in."""
    home = login.home
    job = login.slurm.run(
        *("env", f"SCALING_PYTHON={template.python}", f"PYTHONPATH={template.root}"),
        *("sbatch", "--parsable", "--partition=pcie", "--nodes=2", "--licenses=machine", "--output=out.txt"),
        *(str(template.path), "topology=slurm_pcie", *template.short, "run_dir=run"),
        cwd=home,
    )
    assert job.returncode == 0, job.stderr
    login.until_over(job.stdout.strip())
    assert login.measured() == {1: [0], 2: [0]}, (home / "out.txt").read_text()
