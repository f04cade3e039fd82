"""What is shipped: wheels of `scaling` and its simulator, each with one top-level name, that work from any folder."""

import json
import os
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.processes import NO_NAMESPACES, captured, user_namespaces

from scaling_simulator import build

ROOT = Path(__file__).parents[1]


def built(kind, source, out):
    """Build `source` as a "wheel" or "sdist" in the folder `out`; the file."""
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, source],
        check=True,
        capture_output=True,
    )
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("wheel", ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    return built("wheel", ROOT / "simulator", tmp_path_factory.mktemp("simulator"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """What the source distribution holds, unpacked."""
    file = built("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    with tarfile.open(file) as archive:
        archive.extractall(file.parent, filter="data")
    return file.parent / file.name.removesuffix(".tar.gz")


def environment(folder, *wheels):
    """Python of a clean environment in `folder` with wheels; their dependencies are borrowed, after it on the path."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, *wheels],
        check=True,
    )
    (packages / "borrowed.pth").write_text(
        "\n".join(p for p in site.getsitepackages() if "site-packages" in p)
    )
    return python


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A clean environment with the wheel in it; its dependencies are borrowed, after it on the path."""
    return environment(tmp_path_factory.mktemp("env"), wheel)


def scaling(python, *words, **options):
    """`scaling WORDS` in an environment, which imports from none of the folders that this process does."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return captured([python, "-m", "scaling.cli", *words], env=alone, **options)


def test_each_wheel_has_one_top_level_name(wheel, simulator):
    for file, name in ((wheel, "scaling"), (simulator, "scaling_simulator")):
        names = {path.split("/")[0] for path in zipfile.ZipFile(file).namelist()}
        assert {top for top in names if not top.endswith(".dist-info")} == {name}


def test_the_simulators_holds_the_sources_of_the_device(simulator):
    folder = ROOT / "simulator"
    sources = {str(path.relative_to(folder)) for path in folder.glob("scaling_simulator/csrc/**/*.*")}
    assert len(sources) > 30
    assert sources <= set(zipfile.ZipFile(simulator).namelist())


def test_both_need_each_other_in_the_version_that_they_have(wheel, simulator):
    version = wheel.name.split("-")[1]
    assert simulator.name.split("-")[1] == version
    assert f"Requires-Dist: scaling-harness=={version}" in metadata(simulator)
    assert f"Requires-Dist: scaling-harness-simulator=={version}; extra == 'simulate'" in metadata(wheel)


def metadata(file):
    """Lines of a wheel's METADATA."""
    archive = zipfile.ZipFile(file)
    (name,) = (path for path in archive.namelist() if path.endswith(".dist-info/METADATA"))
    return archive.read(name).decode().splitlines()


SIMULATED = ("topology=simulated_hgx_h100", "model=synthetic", "world_sizes=[8]")


def test_without_the_simulator_a_simulated_run_says_how_to_install_it(installed, tmp_path):
    done = scaling(installed, "run", *SIMULATED, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "scaling: the simulated accelerator is not installed: pip install 'scaling-harness[simulate]'"
    ]


def test_with_the_simulator_it_simulates(wheel, simulator, tmp_path):
    """Or says what this machine lacks to build the device."""
    (tmp_path / "away").mkdir()
    python = environment(tmp_path / "env", wheel, simulator)
    done = scaling(python, "run", *SIMULATED, "--json", cwd=tmp_path / "away")
    lacking = build.missing()
    if lacking is not None:
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"scaling: {lacking}")
        return
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["points"][0]["status"] == "simulated"


def test_the_source_distribution_holds_what_a_checkout_does(unpacked):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    kept = {name for name in listed.splitlines() if not name.startswith(".")}
    if not kept:
        pytest.skip("git does not tell which files this is made of")
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert kept <= found
    assert not {name for name in found if name.startswith((".venv", "runs/", "dist/"))}


def test_a_wheel_made_from_it_is_the_same(unpacked, wheel, tmp_path):
    again = built("wheel", unpacked, tmp_path)
    ours, theirs = (
        {name: archive.read(name) for name in archive.namelist()}
        for archive in map(zipfile.ZipFile, (wheel, again))
    )
    assert ours == theirs


def test_the_users_folders_travel_inside(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "scaling/_shipped/conf/config.yaml" in names
    assert "scaling/_shipped/launch/torchrun.sh" in names
    assert "scaling/_shipped/launch/emulated_hosts.py" in names


def planned(python, *arguments, cwd):
    """The document of `scaling plan` in that environment."""
    done = scaling(python, "plan", *arguments, "--json", cwd=cwd, check=True)
    return json.loads(done.stdout)


def test_plan_works_from_another_folder(installed, tmp_path):
    plan = planned(installed, "topology=emulated_pcie", cwd=tmp_path)
    assert plan["spec"]["topology"]["name"] == "emulated_pcie"
    assert "_shipped/launch" in plan["commands"][0]
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_config_folder_is_found(installed, tmp_path):
    (tmp_path / "mine/model").mkdir(parents=True)
    (tmp_path / "mine/model/wide.yaml").write_text(
        "name: wide\n_target_: scaling.worker.models.mlp.build\nfeatures: 8\nwidth: 9\ndepth: 1\nclasses: 2\n"
    )
    plan = planned(installed, "--config-dir", "mine", "model=wide", cwd=tmp_path)
    assert plan["spec"]["model"]["args"]["width"] == 9


def test_it_says_the_version_that_it_was_built_as(installed, wheel):
    said = scaling(installed, "--version", check=True)
    assert wheel.name.split("-")[1] == said.stdout.strip()


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.alone
def test_the_demo_runs_from_it(installed, tmp_path):
    """Away from any checkout: configs, the torchrun wrapper and the emulated hosts are the wheel's own."""
    if not user_namespaces():
        pytest.skip(NO_NAMESPACES)
    demo = ["-m", "experiment=demo", "topology=emulated_pcie,emulated_nvlink", "run_dir=demo"]
    done = scaling(installed, "run", *demo, cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stderr
    own = installed.parents[1]
    work = []
    for run in ("0", "1"):
        folder = tmp_path / "demo" / run
        commands = (folder / "command.txt").read_text()
        assert f"{own}/" in commands
        assert str(ROOT) not in commands
        assert (folder / "report.html").stat().st_size > 100_000
        plan = json.loads((folder / "plan.json").read_text())
        work.append([plan["spec"][name] for name in ("model", "world_sizes", "batch_per_rank", "ddp")])
    assert work[0] == work[1]
    # How much of it a budget holds, and which one is faster, is a matter of time: benchmarks/demo.py measures it.
    compared = json.loads((tmp_path / "demo/comparison.json").read_text())
    assert compared["comparable"], compared["reasons"]
    assert any(p["ratio"] for p in compared["points"])
    assert (tmp_path / "demo/comparison.html").stat().st_size > 100_000


def test_the_shell_script_is_still_executable(installed):
    script = next(installed.parents[1].glob("lib/python*/site-packages/scaling/_shipped/launch/torchrun.sh"))
    assert script.stat().st_mode & 0o111
