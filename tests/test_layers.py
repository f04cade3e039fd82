"""Who may import whom, read from the source: the arrows of the design point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import scaling

ROOT = Path(scaling.__file__).parent
FACTS = {
    "scaling." + name
    for name in ("spec", "fabric", "cluster", "records", "checkup", "units", "errors", "codec", "secrets")
}

OF_DATA = {"scaling.worker.folder": {"PIL"}}
"""What a dataset needs for itself, imported when it is made."""


def module_of(path: Path) -> str:
    parts = ("scaling", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_of(p): p for p in ROOT.rglob("*.py") if "_shipped" not in p.parts}
MODULES = sorted(PATHS)


def imports(module: str) -> set[str]:
    """Modules that one imports anywhere, in functions too; a name taken from a package counts as its module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(PATHS[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = inner & PATHS.keys()
            found |= submodules
            if len(submodules) < len(inner):
                found.add(str(node.module))
    return found


def within(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(p + ".") for p in packages)


def ours(module: str) -> set[str]:
    """Modules of ours; not the package itself, which is imported with each of them."""
    return {m for m in imports(module) if within(m, "scaling")} - {"scaling"}


def theirs(module: str) -> set[str]:
    """Packages that are neither ours nor Python's."""
    tops = {m.split(".")[0] for m in imports(module)}
    return {top for top in tops if top != "scaling" and top not in sys.stdlib_module_names}


def of(package: str) -> list[str]:
    found = [m for m in MODULES if within(m, package)]
    assert found, package
    return found


def importers(*packages: str) -> set[str]:
    return {m for m in MODULES if theirs(m) & set(packages)}


def test_every_module_is_seen():
    assert {"scaling.cli", "scaling.worker.launch", "scaling.analysis.point"} <= PATHS.keys()


def test_the_package_itself_brings_nothing_along():
    tree = ast.parse(PATHS["scaling"].read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in at_once}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize("module", sorted(FACTS))
def test_facts_import_nothing_but_each_other_and_the_standard_library(module):
    assert ours(module) <= FACTS
    assert theirs(module) == set()


@pytest.mark.parametrize("module", of("scaling.worker"))
def test_a_worker_needs_torch_and_the_standard_library(module):
    assert theirs(module) <= {"torch"} | OF_DATA.get(module, set())
    allowed = FACTS | {"scaling.plan", "scaling.files", "scaling.store", "scaling.cases", "scaling.largest"}
    assert {m for m in ours(module) if not within(m, "scaling.worker")} <= allowed


def test_nor_does_what_a_worker_imports_bring_anything_along():
    seen: set[str] = set()
    left = set(of("scaling.worker"))
    while left:
        module = left.pop()
        seen.add(module)
        left |= ours(module) - seen
    assert set().union(*(theirs(m) for m in seen)) <= {"torch"}.union(*OF_DATA.values())
    assert not {m for m in seen if within(m, "scaling.analysis", "scaling.report", "scaling.config")}


@pytest.mark.parametrize("module", of("scaling.analysis"))
def test_analysis_is_pure(module):
    assert not theirs(module) & {"torch", "rich", "wandb", "hydra", "omegaconf", "plotly"}
    outside = ("scaling.report", "scaling.launchers", "scaling.worker", "scaling.config")
    assert not {m for m in ours(module) if within(m, *outside)}


@pytest.mark.parametrize("module", of("scaling.doctor"))
def test_the_doctor_is_rules_over_what_was_measured(module):
    assert theirs(module) == set()
    outside = ("scaling.report", "scaling.launchers", "scaling.worker", "scaling.config")
    assert not {m for m in ours(module) if within(m, *outside)}


@pytest.mark.parametrize("module", of("scaling.telemetry"))
def test_telemetry_stands_alone_and_needs_nothing_but_nvml(module):
    assert theirs(module) <= {"pynvml"}
    assert all(within(m, "scaling.telemetry") for m in ours(module))


@pytest.mark.parametrize("module", of("scaling.report"))
def test_a_report_knows_results_and_computes_nothing(module):
    allowed = {"scaling.analysis.results", "scaling.analysis.traced", "scaling.doctor.results"}
    allowed |= {"scaling.analysis.machines"}
    allowed |= {"scaling.codec", "scaling.errors", "scaling.plan"}
    allowed |= {
        "scaling.spec",
        "scaling.fabric",
        "scaling.secrets",
        "scaling.files",
        "scaling.store",
        "scaling.units",
        "scaling.cases",
    }
    if module == "scaling.report.queue":
        allowed |= {"scaling.launchers.queue", "scaling.status"}
    if module == "scaling.report.planned":
        allowed |= {"scaling.launchers.commands", "scaling.launchers.follow"}
    assert {m for m in ours(module) if not within(m, "scaling.report")} <= allowed


@pytest.mark.parametrize("module", of("scaling.trace"))
def test_a_reader_of_traces_neither_runs_nor_draws(module):
    assert not theirs(module) & {"torch", "wandb", "hydra", "omegaconf", "plotly", "polars"}
    outside = ("scaling.launchers", "scaling.worker", "scaling.config", "scaling.report", "scaling.run")
    if module != "scaling.trace.folder":
        assert not {m for m in ours(module) if within(m, *outside)}


def test_what_a_dataset_needs_is_imported_by_it_alone():
    for package in set().union(*OF_DATA.values()):
        assert importers(package) == {m for m, needs in OF_DATA.items() if package in needs}


def test_hydra_stays_at_the_edge():
    assert importers("hydra", "omegaconf") == {"scaling.config"}


def test_wandb_stays_in_the_report():
    assert importers("wandb") <= {"scaling.report.wandb", "scaling.report.sync"}


def test_torch_stays_in_the_worker():
    assert all(within(m, "scaling.worker") for m in importers("torch"))


def test_no_worker_brings_wandb_or_hydra_into_its_process():
    """Not only what stands in the files: what is there once every module of a worker was imported."""
    code = (
        f"import importlib, sys; [importlib.import_module(m) for m in {of('scaling.worker')!r} "
        "if not m.endswith('__main__')]; "
        "print({'wandb', 'hydra', 'omegaconf', 'rich', 'plotly', 'polars'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert done.stdout.strip() == "set()"


def test_a_plan_is_shown_without_what_measuring_and_reporting_need():
    """It is what people try first, and try again with every change: half a second."""
    code = (
        "import sys; from scaling.cli import main; main(['plan', 'topology=emulated_pcie']); "
        "print({'torch', 'wandb', 'plotly', 'polars', 'scipy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert done.stdout.splitlines()[-1] == "set()"
