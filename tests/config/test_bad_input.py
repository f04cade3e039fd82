"""Bad input: one line on stderr (what, where, what would be accepted), nothing on stdout, exit 2, nothing created."""

import errno
import importlib.util
import json
import os

import pytest
from golden import cases
from support.commands import refused

from scaling.cli.main import main
from scaling.cli.pipeline import rebuild
from scaling.config.compose import requests
from scaling.records.paths import RunFolder

CASES = [
    (["rnu"], "did you mean `run`"),
    (["run", "model=resnet51"], "available: bert, bert_large, custom, gpt2"),
    (["run", "topology=hgx"], "available: dgx1_v100, dgx_a100, emulated_nvlink"),
    (["run", "topology=emulated_pci"], "did you mean emulated_pcie or emulated_nvlink? available: dgx1_v100"),
    (["run", "topologi=local"], "topology"),
    (["run", "precision=16"], "precision=16: a name is expected; available: bf16, fp16, fp32, tf32"),
    (["run", "model=null"], "model=null: a name is expected; available: bert, "),
    (["run", "-m", "precision=bf16,null"], "precision=bf16,null: a name is expected; available: bf16"),
    (
        ["run", "batch_per_rank=4,16"],
        "one value is expected; with -m each is a run of its own (a list: [4,16])",
    ),
    (["run", "batch_per_rank=four"], "batch_per_rank=four: a whole number is expected"),
    (["run", "batch_per_rank=null"], "batch_per_rank=null: a value is expected"),
    (["run", "+batch_per_rank=4"], "that key is there already; batch_per_rank= changes it"),
    (["run", "measure.budget_s=1m"], "measure.budget_s=1m: a number is expected"),
    (["run", "vary.precision=fp32"], "such as vary.precision=[fp32]"),
    (["run", "vary.accumulation_steps=[1,1]"], "vary.accumulation_steps=[1,1]: each item once is expected"),
    (["run", "world_sizes=[2,1,2]"], "world_sizes=[2,1,2]: each item once is expected"),
    (["run", "model=mlp", "batch=[8,8]"], "batch=[8,8]: each item once is expected"),
    (["run", "vary.compile=[true,true]"], "vary.compile=[true,true]: each item once is expected"),
    (["run", "vary=[1]"], "vary: its keys are set one by one, such as vary.precision=..."),
    (["run", "ddp=3"], "ddp: its keys are set one by one, such as ddp.bucket_cap_mb=..."),
    (["run", "model=[1]"], "model=[1]: a name is expected; available: bert, "),
    (["run", "+env.X=null"], "env.X=None: a number or a text is expected, such as 1"),
    (["run", "+env.NCCL_IB_DISABLE=true"], "env.NCCL_IB_DISABLE=True: a number or a text is expected"),
    (["run", "+cluster.env.A.B=1"], "cluster.env.A={'B': 1}: a number or a text is expected"),
    (["run", "env.NCCL_DEBUG=INFO"], "a new name takes a +, as in +env.NCCL_DEBUG=..."),
    (["run", "measure.step=3"], "measure.steps"),
    (["run", "model=highmem_cnn", "model.hiden=3"], "did you mean model.hidden"),
    (["run", "measure.collectives=[]"], "such as [all_reduce]"),
    (["run", "measure.fabric_max=512B"], "measure.fabric_max=512B: at least 1 KiB is expected"),
    (["run", "measure.warmup_max=3"], "measure.warmup_max=3: at least 4 is expected"),
    (["plan", "measure.budget_s=inf"], "measure.budget_s=inf: a finite number from 1 on is expected"),
    (["plan", "measure.budget_s=nan"], "measure.budget_s=nan: a finite number"),
    (["run", "measure.step_timeout_s=inf"], "measure.step_timeout_s=inf: a finite number"),
    (["run", "inject.compute_ms=inf"], "inject.compute_ms=inf: a finite number from 0 on"),
    (["run", "--bogus"], "--bogus"),
    (["run", "world_sizes=[0]", "topology=emulated_pcie"], "between 1 and 2"),
    (["run", "world_sizes=[-1,2]", "topology=emulated_pcie"], "between 1 and 2"),
    (
        ["run", "world_sizes=[1,64]", "topology=emulated_pcie"],
        "64 is not between 1 and 2, which is what topology=emulated_pcie holds: topology.hosts=2, ",
    ),
    (["run", "world_sizes=[]", "topology=emulated_pcie"], "such as [1,2]"),
    (["run", "world_sizes=2", "topology=emulated_pcie"], "such as world_sizes=[2]"),
    (["run", "world_sizes=[a", "topology=emulated_pcie"], "world_sizes=[a"),
    (["run", "world_sizes=[1.5]", "topology=emulated_pcie"], "world_sizes"),
    (["run", "mode=strong", "global_batch=31", "topology=emulated_pcie"], "does not divide by world size 2"),
    (["run", "mode=strong"], "global_batch is missing"),
    (["run", "mode=strong", "global_batch=0"], "global_batch=0: at least 1 is expected"),
    (["run", "mode=sideways"], "one of weak, strong"),
    (["run", "accumulation_steps=5"], "use a multiple"),
    (["run", "batch_per_rank=0"], "at least 1"),
    (["run", "topology=emulated_pcie", "topology.link.rate=200"], "such as 200mbit"),
    (["run", "topology=emulated_pcie", "topology.link.rate=fast"], "such as 200mbit"),
    (
        ["run", "topology=emulated_pcie", "topology.link.rate=1kbit"],
        "topology.link.rate=1kbit: an emulated link takes",
    ),
    (
        ["run", "topology=emulated_pcie", "inject.link_rate=40gbit"],
        "inject.link_rate=40gbit: an emulated link takes",
    ),
    (["run", "precision=tf32", "topology.device=cpu"], "fp32 or bf16"),
    (["run", "precision=fp16", "topology.device=cpu"], "fp32 or bf16"),
    (["run", "precision=int4"], "available: bf16, fp16, fp32, tf32"),
    (["run", "topology.backend=nccl", "topology.device=cpu"], "use topology.backend=gloo"),
    (["run", "topology.hosts=0"], "at least 1"),
    (["run", "ddp.bucket_cap_mb=0"], "above 0"),
    (["run", "data=images"], "available: custom, folder, synthetic"),
    (
        ["run", "data=custom"],
        "data._target_: a value is expected, such as data._target_=package.module.Dataset",
    ),
    (["run", "data=folder"], "data.path: a value is expected"),
    (
        ["run", "data=folder", "data.path=/nowhere"],
        "a folder with one folder of images for each class is expected",
    ),
    (["run", "data._target_=Images"], "package.module.Dataset"),
    (["run", "data._target_=a.B", "data.workers=-1"], "at least 0"),
    (["run", "data._target_=a.B", "data.workers=two"], "at least 0"),
    (["run", "data._target_=a.B", "data.prefetch=0"], "at least 1"),
    (["run", "data._target_=a.B", "data.pin_memory=often"], "true or false"),
    (["run", "data._target_=a.B"], "cannot be imported"),
    (["run", "data._target_=fractions.Fraction"], "a torch Dataset is expected"),
    (["run", "ddp.comm_hook=int8"], "one of none, fp16, bf16, powersgd is expected"),
    (["run", "compile=perhaps"], "compile=perhaps: true or false is expected"),
    (["run", "compile=true", "ddp.bucket_cap_mb=0.5"], "at least 1 MiB"),
    (["run", "model=mlp", "channels_last=true"], "no 4-dimensional parameter"),
    (["run", "inject.rank=7", "topology=emulated_pcie"], "ranks of this run are 0 to 1"),
    (["submit", "topology=pcie_node", "cluster.exclusive=false"], "cluster.cpus_per_rank=8"),
    (["submit", "topology=pcie_node", "+cluster.sbatch.clusters=b"], "the login node of that cluster"),
    (["submit", "topology=pcie_node", "cluster.start_s=0"], "cluster.start_s=0"),
    (["run", "inject.link_rate=50mbit", "topology=local"], "inject.link_rate=50mbit: only emulated links"),
    (["run", "inject.memory_limit=2GiB"], "inject.memory_limit: limits batch=max"),
    (["run", "tracking.mode=loud"], "offline, online, disabled"),
    (["run", "tracking.alerts=true"], "`scaling compare --fail-below RATIO` in CI is a gate"),
    (["submit", "tracking.objective=efficiency"], "-m measures every combination"),
    (["plan", "++tracking.alerts=true"], "`scaling compare --fail-below RATIO` in CI is a gate"),
    (["report", "nowhere", "--figures", "x"], "no such folder"),
    (["run", "launcher=local", "topology=emulated_pcie"], "use launcher=emulated"),
    (["run", "seed=abc"], "abc"),
    (["run", "seed=-1"], "at least 0"),
    (["run", "model=custom"], "package.module.factory"),
    (["run", "model=custom", "model._target_=nothing"], "package.module.factory"),
    (["run", "--resume"], "--resume RUN is expected"),
    (["run", "--resume", "nowhere"], "no such folder"),
    (["run", "--resume", "nowhere", "model=mlp"], "--resume RUN is expected alone"),
    (["run", "topology=pcie_node"], "use `scaling submit`"),
    (["run", "launcher=local", "topology=pcie_node"], "use launcher=slurm"),
    (["submit", "topology=emulated_pcie"], "emulated on one machine"),
    (["run", "topology.placement=round"], "one of packed, spread"),
    (["submit", "topology=local"], "such as topology.ranks_per_host=8"),
    (["submit", "launcher=local", "topology=local"], "use `scaling run`"),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.time=0"], "not a time limit above 0"),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.time=soon"], "such as 90, 1:30:00 or 1-12"),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.partition='a b'"], "one word is expected"),
    (["submit", "--dry-run", "topology=pcie_node", "run_dir='a b'"], "without spaces, quotes"),
    (["submit", "--dry-run", "topology=pcie_node", "topology.ranks_per_host=null"], "ranks_per_host=8"),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.gpus_per_node=0"], "at least 1"),
    (["submit", "--dry-run", "topology=pcie_node", "+cluster.sbatch.gpus-per-task=1"], "NVLink goes unused"),
    (["submit", "--dry-run", "topology=pcie_node", "+cluster.sbatch.time=3"], "use cluster.time"),
    (
        ["submit", "--dry-run", "topology=pcie_node", "+cluster.srun.nodelist=a"],
        "use cluster.sbatch.nodelist",
    ),
    (
        ["submit", "--dry-run", "topology=pcie_node", "+cluster.srun.Net=a"],
        "a long option of srun is expected",
    ),
    (
        ["submit", "--dry-run", "topology=pcie_node", "cluster.gres=gpu:8", "cluster.gpus_per_node=8"],
        "cluster.gres=gpu:8 is given too",
    ),
    (["submit", "--dry-run", "topology=pcie_node", "+cluster.sbatch.array=0-3"], "would share one"),
    (
        [
            "submit",
            "--dry-run",
            "topology=pcie_node",
            "cluster.setup=['umask 7','export HF_TOKEN=hf_abcdefgh1']",
        ],
        "cluster.setup[1]: this secret would be written into the run's folder",
    ),
    (
        ["submit", "--dry-run", "topology=pcie_node", "+cluster.sbatch.export='ALL,WANDB_API_KEY=abc1'"],
        "cluster.sbatch.export: this secret would be written into the run's folder",
    ),
    (
        ["submit", "--dry-run", "topology=pcie_node", "+cluster.srun.network='https://me:hush@host'"],
        "cluster.srun.network: this secret would be written into the run's folder",
    ),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.time=2"], "cluster.time=19 holds all of it"),
    (
        ["run", "topology=pcie_node"],
        "use `scaling submit`, or run it inside `salloc --partition=pcie --nodes=1",
    ),
    (["doctor", "topology=pcie_node"], "needs a Slurm allocation; run it inside `salloc --partition=pcie"),
    (["run", "topology=pcie_node", "cluster.allocations=3"], "`scaling submit` submits a job for each"),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.container.runtime=docker"], "pyxis, apptainer"),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.container.mounts=[data]"], "/SOURCE:/TARGET"),
    (["submit", "--dry-run", "topology=pcie_node", "cluster.numa_binding=left"], "exclusive"),
    (["submit", "--resume"], "--resume RUN is expected"),
    (["status", "nowhere"], "no such folder"),
    (["cancel", "nowhere"], "no such folder"),
    (["plan", "model=resnet51"], "available"),
    (["run", "task=predict"], "one of train, inference"),
    (["run", "batch=max", "topology.device=cpu"], "such as memory_limit=2GiB"),
    (["run", "batch=[0,8]"], "batches of at least 1"),
    (["run", "batch=most"], "such as batch=[1,8,32]"),
    (["run", "batch=[]"], "batches of at least 1"),
    (["run", "batch=max", "memory_limit=lots"], "such as 2GiB"),
    (["run", "memory_limit=2GiB"], "batch=max"),
    (["run", "batch=[8]", "mode=strong", "global_batch=8"], "use mode=weak"),
    (["run", "batch=[8]", "inject.compute_ms=5"], "inject.compute_ms"),
    (["run", "batch=[8]", "vary.accumulation_steps=[3]"], "use a multiple"),
    (["run", "batch=[8]", "data=folder", "data.path=."], "data=folder: batch, vary and task=inference take"),
    (
        ["run", "task=inference", "data._target_=mine.Images"],
        "data._target_=mine.Images: batch, vary and task=inference take batches that the model makes up; "
        "use data=synthetic",
    ),
    (["run", "batch=[8]", "compile=true"], "compile=true: with batch or vary training runs eager; leave out"),
    (["run", "vary.precision=[fp32]", "ddp.comm_hook=bf16"], "use ddp.comm_hook=none, or leave out batch"),
    (["run", "batch=[8]", "ddp.static_graph=true"], "leave out static_graph, or batch and vary"),
    (["run", "ddp.static_graph=true", "accumulation_steps=2"], "with accumulation_steps=2: torch ends"),
    (["run", "ddp.static_graph=true", "compile=true"], "with compile=true: torch ends a first backward"),
    (["run", "task=inference", "checkpointing=true"], "checkpointing=true: belongs to training"),
    (["run", "task=inference", "fused_optimizer=true"], "fused_optimizer=true: belongs to training"),
    (["run", "task=inference", "ddp.static_graph=true"], "ddp.static_graph: belongs to training"),
    (["run", "task=inference", "vary.checkpointing=[true]"], "belongs to training"),
    (["run", "vary.compile=[true]"], "belongs to task=inference"),
    (["run", "vary.precision=[fp32,int4]"], "one of fp32, tf32, bf16, fp16"),
    (["run", "model=vit", "model.image=100"], "model.image=100: a multiple of 16 from 16 on is expected"),
    (["run", "model=rtdetr", "model.image=64"], "a multiple of 32 from 128 on"),
    (["run", "model=gpt2", "model.sequence=2048"], "from 1 to 1024"),
    (["run", "model=bert", "model.sequence=long"], "a whole number"),
    (["analyze"], "one run folder expected"),
    (["analyze", "nowhere"], "no such folder"),
    (["analyze", "--fast", "x"], "--json"),
    (["compare", "one"], "2 or more"),
    (["compare", "a", "b", "--fail-below", "much"], "such as 0.95"),
    (["compare", "a", "b", "--fail-below", "nan"], "such as 0.95"),
    (["report", "nowhere"], "no such folder"),
    (["sync", "nowhere"], "no such folder"),
    (["doctor", "topology.device=cuda"], "no CUDA device was found"),
    (["doctor", "model=synthetic"], "a step has no FLOPs"),
    (["doctor", "model=resnet51"], "available"),
    (["doctor", "--parity"], "--parity FILE is expected"),
    (["doctor", "--parity", "model=mlp"], "--parity FILE is expected"),
    (["compare", "a", "b", "--into"], "--into DIR is expected"),
    (["submit", "--dry-run", "--resume", "a"], "--resume RUN is expected alone"),
    (["doctor", "--parity", "nowhere/p.json"], "cannot be written to"),
    (["doctor", "--parity", "~nosuch/p.json"], "--parity ~nosuch/p.json: no such home folder"),
    (
        ["plan", "run_dir='~nosuch/run'"],
        "run_dir=~nosuch/run: no such home folder; a path that begins with /",
    ),
    (
        ["plan", "--time", "data=folder", "data.path='~nosuch/images'", "world_sizes=[1]"],
        "data.path=~nosuch/images: no such home folder",
    ),
    (["doctor", "-m", "model=mlp,highmem_cnn"], "checks one configuration"),
    (["import", "nccl-tests", "a", "b"], "2 words (KIND FILE) expected, 3 given"),
    (["report", __file__], f"{__file__}: is a file; "),
    (["trace"], "1 or more traces or folders (--how says how to get them) expected"),
    (["trace", "nowhere"], "no such file or folder"),
    (["trace", "x", "--batch", "many"], "such as --batch 32"),
    (["import", "topo"], "KIND FILE"),
    (["import", "topo", "nowhere"], "cannot be read"),
    (["import", "iso", "x"], "nccl-tests, topo, nccl-xml"),
]


TRIED = ("data._target_=fractions.Fraction", "data.path=/nowhere", "channels_last=true", "model=synthetic")
"""What is found by a process that tries a step, some seconds each; `data._target_=a.B` stands for them."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(*case, id=" ".join(case[0]), marks=pytest.mark.slow if {*TRIED} & {*case[0]} else ())
        for case in CASES
    ],
)
def test_one_line_and_exit_2(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refused(capsys, arguments, said)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_value_is_one_line_where_causes_are_shown_in_full(tmp_path, monkeypatch, capsys):
    """As with OC_CAUSE=1, in a debugger an exception of OmegaConf is its own cause's cause."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OC_CAUSE", "1")
    refused(capsys, ["run", "seed=abc"], "seed=abc: a whole number is expected")
    refused(capsys, ["run", "world_sizes=[two]"], "a whole number is expected")


def test_a_working_directory_that_is_not_new(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "fresh/0").mkdir(parents=True)
    asked = ["launch", "topology=local", "topology.device=cpu", "--world-sizes", "1,2", "--fresh", "fresh"]
    refused(capsys, [*asked, "train.py"], "--fresh fresh: is not empty; a folder that does not exist yet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "train.py"]


def test_emulated_hosts_where_nothing_can_make_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(
        capsys,
        ["run", "topology=emulated_pcie"],
        "topology=emulated_pcie: emulated hosts need the command unshare (util-linux)",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_remedy_that_cannot_be_measured_here_leaves_no_folder(tmp_path, monkeypatch, capsys):
    folder = RunFolder(cases.CASES["demo_slow_link"](tmp_path))
    folder.config.write_text(requests("run", ["topology=emulated_pcie"]).items[0].yaml)
    rebuild(folder)
    analysis = json.loads(folder.analysis.read_text())
    analysis["verdicts"][0]["try"] = [{"overrides": "ddp.comm_hook=bf16", "code": ""}]
    folder.analysis.write_text(json.dumps(analysis))
    before = sorted(folder.path.rglob("*"))
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(capsys, ["verify", str(folder.path)], "emulated hosts need the command unshare (util-linux)")
    assert sorted(folder.path.rglob("*")) == before


def test_emulated_hosts_where_namespaces_are_forbidden(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    refused(
        capsys,
        ["run", "topology=emulated_pcie"],
        "this system refuses (unshare: unshare failed: Operation not permitted)",
    )
    assert list(tmp_path.iterdir()) == [refusing]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(None, "cannot be imported", marks=pytest.mark.slow),
        pytest.param("def factory():\n    return 3\n", "returned int", marks=pytest.mark.slow),
        pytest.param("def factory(width):\n    pass\n", "width", marks=pytest.mark.slow),
        pytest.param(
            "import torch\nfrom scaling.worker.data.workload import Workload, sgd\n"
            "def factory():\n"
            "    return Workload(module=torch.nn.ReLU(), make_batch=None, loss=None, optimizer=sgd)\n",
            "no trainable parameter",
            marks=pytest.mark.slow,
        ),
        (
            "import torch\nfrom scaling.worker.data.workload import Workload, sgd\n"
            "def factory():\n"
            "    return Workload(module=torch.nn.Linear(3, 1), loss=lambda o, t: o.sum(), optimizer=sgd,\n"
            "                    make_batch=lambda n, g: (torch.zeros(n, 4), None))\n",
            "forward failed: RuntimeError",
        ),
    ],
    ids=["no module", "no workload", "missing argument", "nothing to train", "wrong shape"],
)
def test_a_custom_model_is_tried_before_anything_is_launched(source, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    refused(capsys, ["run", "model=custom", "model._target_=mine.factory"], said)
    assert not (tmp_path / "runs").exists()


MINE = (
    "import torch\nfrom scaling import Workload\n"
    "class Net(torch.nn.Linear):\n    pass\n"
    "def factory():\n"
    "    return Workload(module=Net(2, 1), loss=lambda o, t: o.sum(), optimizer=torch.optim.RMSprop,\n"
    "                    make_batch=lambda n, g: (torch.zeros(n, 2), None))\n"
)


@pytest.mark.parametrize(
    ("option", "said"),
    [("checkpointing", "nothing to checkpoint"), ("fused_optimizer", "RMSprop has no fused form")],
)
@pytest.mark.slow
def test_an_option_that_finds_nothing_to_act_on(option, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    refused(capsys, ["run", "model=custom", "model._target_=mine.factory", f"{option}=true"], said)


@pytest.mark.slow
def test_images_of_another_size_than_the_models(tmp_path, monkeypatch, capsys):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images/cats").mkdir(parents=True)
    image.new("RGB", (32, 32)).save(tmp_path / "images/cats/1.png")
    err = refused(capsys, ["run", "data=folder", "data.path=images", "data.image=24", "topology.device=cpu"])
    assert err.endswith("(data.image=24 beside model.image=16)\n")


@pytest.mark.slow
def test_compile_without_a_compiler(tmp_path_factory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    refused(
        capsys,
        ["run", "model=mlp", "compile=true", "topology.device=cpu"],
        "compile=true",
        "No working C++ compiler found",
    )


def test_a_preset_whose_package_is_not_installed_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "transformers" else find(n, *a)
    )
    monkeypatch.chdir(tmp_path)
    refused(capsys, ["run", "model=resnet50"], "pip install 'scaling-harness[models]'")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_not_touched(tmp_path, monkeypatch, capsys):
    (tmp_path / "plan.json").write_text("{}")
    refused(capsys, ["run", f"run_dir={tmp_path}"], "already holds a run")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml", "download.part"])
def test_a_folder_with_other_things_in_it_is_not_touched(name, tmp_path, capsys):
    (tmp_path / name).write_text("mine")
    refused(capsys, ["run", f"run_dir={tmp_path}"], "not an empty folder")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "mine")]


@pytest.mark.parametrize("name", ["comparison.json", "comparison.md", "comparison-1.html"])
def test_no_file_is_replaced_by_the_comparison_of_a_multirun(name, tmp_path, capsys):
    (tmp_path / name).write_text("[]")
    sizes = ["topology=local", "topology.device=cpu", "model=synthetic", "batch_per_rank=1,2"]
    refused(capsys, ["plan", "-m", *sizes, f"run_dir={tmp_path}"], f"{name} is there and would be replaced")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path, capsys):
    tmp_path.chmod(0o500)
    refused(capsys, ["run", f"run_dir={tmp_path / 'a' / 'b'}"], "cannot be written to")


def test_a_folder_that_cannot_be_made(capsys):
    refused(capsys, ["run", "run_dir=/proc/scaling-run"], "name a folder that can")


def test_a_run_folder_below_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    refused(capsys, ["run", f"run_dir={tmp_path / 'file' / 'run'}"], "cannot be written to")


def test_a_plan_from_another_version_is_refused_with_the_way_out(tmp_path, capsys):
    (tmp_path / "plan.json").write_text('{"schema": 99}')
    refused(capsys, ["analyze", str(tmp_path)], "update scaling-harness")


def test_a_plan_that_is_no_json(tmp_path, capsys):
    (tmp_path / "plan.json").write_text("hello")
    refused(capsys, ["analyze", str(tmp_path)])


def test_a_parity_file_of_another_model_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    machine = {"schema": 1, "model": "other(), batch 8, seed 0", "hostname": "a", "device": "b", "facts": {}}
    (tmp_path / "p.json").write_text(json.dumps(machine))
    refused(capsys, ["doctor", "--parity", "p.json"], "was written for other(), batch 8, seed 0")
    assert not (tmp_path / "runs").exists()


def test_no_command_at_all_is_answered_with_those_that_there_are(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: scaling VERB ...")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "scaling: No space left on device\n"),
        (OSError(errno.EACCES, "Permission denied", "/theirs/x"), "scaling: /theirs/x: Permission denied\n"),
    ],
)
def test_what_a_file_system_says_is_one_line(monkeypatch, capsys, error, said):
    def verb(arguments):
        raise error

    monkeypatch.setattr("scaling.cli.main._verb", lambda name: verb)
    assert main(["analyze", "run"]) == 1
    assert capsys.readouterr().err == said


def test_a_file_that_we_forgot_keeps_its_traceback(monkeypatch):
    def verb(arguments):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "x")

    monkeypatch.setattr("scaling.cli.main._verb", lambda name: verb)
    with pytest.raises(FileNotFoundError):
        main(["analyze", "run"])
