"""Who may import whom, read from the source. The rooms and the simulator are those of docs/developing.md."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest
from support.processes import captured

import scaling

ROOT = Path(scaling.__file__).parent
SIMULATOR = Path(__file__).parents[1] / "simulator" / "scaling_simulator"

LEAVES = {"scaling"} | {
    f"scaling.{name}" for name in ("version", "errors", "units", "resources", "plain", "reading")
}
"""They import nothing of ours; the package itself imports what is asked of it, when it is asked."""

ROOMS = {
    "settings": set(),
    "hardware": set(),
    "records": {"settings", "hardware"},
    "worker": {"settings", "records"},
    "integrations": {"worker"},
    "config": {"settings", "hardware"},
    "launchers": {"settings", "records"},
    "analysis": {"settings", "records", "hardware"},
    "traces": {"settings", "records", "analysis"},
    "report": {"settings", "records", "analysis"},
    "cli": {
        "settings",
        "hardware",
        "records",
        "worker",
        "config",
        "launchers",
        "analysis",
        "traces",
        "report",
    },
}
"""A room, and the rooms that it may import from."""

ONLY = {
    ("worker", "records"): tuple(
        f"scaling.records.{name}" for name in ("paths", "files", "codec", "format", "encoding", "checkup")
    ),
    ("report", "analysis"): ("scaling.analysis.results",),
    ("cli", "worker"): (),  # by name alone: workers are processes of their own
}
"""Where a room may import from another one, but not all of it."""

OF_DATA = {"scaling.worker.data.folder": {"PIL"}}
"""What a dataset needs for itself, imported when it is made."""

EDGES = {
    "torch": "scaling.worker",
    "hydra": "scaling.config",
    "omegaconf": "scaling.config",
    "wandb": "scaling.report.tracking",
    "jinja2": "scaling.report.html",
    "kaleido": "scaling.report.figures",
    "plotly": "scaling.report",
    "pynvml": "scaling.hardware",
}
"""A package of others, and the one place that imports it."""

DOORS = {
    "scaling.worker.accelerator.devices": ["scaling_simulator.accelerator"],
    "scaling.cli.api": ["scaling_simulator.simulate.results"],
    "scaling.cli.simulated_run": [
        "scaling_simulator.simulate.printing",
        "scaling_simulator.simulate.simulations",
    ],
}
"""What imports the simulator, and what of it: in functions, since it need not be installed."""
NAMES_IT = {"scaling.resources", "scaling.launchers.torchrun"}
"""What looks for it, and what starts it as a process of its own."""


def module_of(path: Path, package: Path = ROOT) -> str:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_of(p): p for p in ROOT.rglob("*.py") if "_shipped" not in p.parts}
MODULES = sorted(PATHS)
SIMULATED = sorted(module_of(p, SIMULATOR) for p in SIMULATOR.rglob("*.py"))
PATHS |= {module_of(p, SIMULATOR): p for p in SIMULATOR.rglob("*.py")}


@functools.cache
def imports(module: str) -> frozenset[str]:
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
    return frozenset(found)


def within(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(p + ".") for p in packages)


def ours(module: str) -> set[str]:
    """Modules of ours that one imports."""
    return {m for m in imports(module) if within(m, "scaling")}


def theirs(module: str) -> set[str]:
    """Packages that are neither ours nor Python's."""
    own = {"scaling", "scaling_simulator"} | sys.stdlib_module_names
    tops = {m.split(".")[0] for m in imports(module)}
    return {top for top in tops if top not in own}


def room_of(module: str) -> str:
    return module.split(".")[1]


def of(room: str) -> list[str]:
    found = [m for m in MODULES if within(m, f"scaling.{room}")]
    assert found, room
    return found


def test_no_module_lies_loose():
    assert {m for m in MODULES if PATHS[m].parent == ROOT and PATHS[m].stem != "__init__"} == LEAVES - {
        "scaling"
    }
    assert {p.parent.name for p in ROOT.glob("*/__init__.py")} == ROOMS.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is(room):
    said = ast.get_docstring(ast.parse(PATHS[f"scaling.{room}"].read_text(encoding="utf-8")))
    assert said is not None
    assert {"In:", "Out:"} <= set(said.split())


@pytest.mark.parametrize("leaf", sorted(LEAVES - {"scaling"}))
def test_a_leaf_imports_nothing_of_ours(leaf):
    assert ours(leaf) <= {"scaling.errors"}
    assert theirs(leaf) == set()


def test_the_package_itself_brings_nothing_along():
    tree = ast.parse(PATHS["scaling"].read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in at_once}
    assert {name.split(".")[0] for name in names - {"scaling.version"}} <= sys.stdlib_module_names


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_from_those_before_it(room):
    wrong = []
    for module in of(room):
        for found in ours(module) - LEAVES:
            other = room_of(found)
            allowed = other == room or other in ROOMS[room]
            allowed &= within(found, *ONLY.get((room, other), ("scaling",)))
            if not allowed:
                wrong.append(f"{module} imports {found}")
    assert wrong == []


def test_the_rooms_are_in_order():
    """A room imports only from rooms above it in the table."""
    before: set[str] = set()
    for room, others in ROOMS.items():
        assert others <= before, room
        before.add(room)


@pytest.mark.parametrize(("package", "place"), EDGES.items())
def test_what_is_heavy_stays_at_its_edge(package, place):
    importers = {m for m in MODULES if package in theirs(m)}
    assert importers
    assert all(within(m, place) for m in importers), importers


def test_the_simulator_is_reached_through_its_doors():
    importing = {m: sorted(i for i in imports(m) if within(i, "scaling_simulator")) for m in MODULES}
    assert {m: names for m, names in importing.items() if names} == DOORS
    naming = {m for m in MODULES if "scaling_simulator" in PATHS[m].read_text(encoding="utf-8")}
    assert naming - DOORS.keys() == NAMES_IT


@pytest.mark.parametrize("door", DOORS)
def test_a_door_does_not_bring_the_simulator_along(door):
    assert loaded(f"import {door}", "scaling_simulator") == set()


def test_what_ranks_of_the_simulator_import_is_what_workers_do():
    """Apart from `simulate`, which computes what is simulated and what it means, and does without torch."""
    ranks = [m for m in SIMULATED if not within(m, "scaling_simulator.simulate")]
    apart = set(ranks) - {
        "scaling_simulator",
        "scaling_simulator.simulation",
    }  # the latter: what the two exchange
    for module in ranks:
        rooms = {room_of(other) for other in ours(module) - LEAVES}
        assert rooms <= {"records", "settings", "worker"}, module
        assert theirs(module) <= {"torch"}
        assert not any(within(i, "scaling_simulator.simulate") for i in imports(module)), module
    for module in sorted(set(SIMULATED) - set(ranks)):
        assert not theirs(module) & {"torch", "rich", "wandb", "hydra", "omegaconf", "plotly"}, module
        assert not any(within(i, *apart) for i in imports(module)), module


@pytest.mark.parametrize("room", ["settings", "hardware"])
def test_facts_and_sensors_need_the_standard_library(room):
    for module in of(room):
        assert theirs(module) <= ({"pynvml"} if room == "hardware" else set())


@pytest.mark.parametrize("module", of("worker"))
def test_a_worker_needs_torch_and_the_standard_library(module):
    assert theirs(module) <= {"torch"} | OF_DATA.get(module, set())


def test_nor_does_what_a_worker_imports_bring_anything_along():
    seen: set[str] = set()
    left = set(of("worker"))
    while left:
        module = left.pop()
        seen.add(module)
        left |= ours(module) - seen - {"scaling"}
    assert set().union(*(theirs(m) for m in seen)) <= {"torch"}.union(*OF_DATA.values())


@pytest.mark.parametrize("room", ["analysis", "traces"])
def test_what_computes_does_not_draw(room):
    for module in of(room):
        assert not theirs(module) & {"torch", "rich", "wandb", "hydra", "omegaconf", "plotly"}


def test_what_a_dataset_needs_is_imported_by_it_alone():
    for package in set().union(*OF_DATA.values()):
        assert {m for m in MODULES if package in theirs(m)} == {
            m for m, needs in OF_DATA.items() if package in needs
        }


def loaded(code: str, *packages: str) -> set[str]:
    """Which of these packages a fresh interpreter has loaded after this code."""
    ended = f"{code}\nimport sys; print({set(packages)!r} & set(sys.modules))"
    done = captured([sys.executable, "-c", ended], check=True, cwd=ROOT.parent)
    return set(ast.literal_eval(done.stdout.splitlines()[-1].replace("set()", "()")))


SLOW = ("torch", "wandb", "plotly", "polars", "scipy", "pandas")


def test_no_worker_brings_wandb_or_hydra_into_its_process():
    """Not only what stands in the files: what is there once every module of a worker was imported."""
    names = [m for m in of("worker") if not m.endswith("__main__")]
    code = f"import importlib; [importlib.import_module(m) for m in {names!r}]"
    assert loaded(code, "wandb", "hydra", "omegaconf", "rich", "plotly", "polars") == set()


def test_a_plan_is_shown_without_what_measuring_and_reporting_need():
    """It is what people try first, and try again with every change: half a second."""
    code = "from scaling.cli.main import main; main(['plan', 'topology=emulated_pcie'])"
    assert loaded(code, *SLOW) == set()


def test_a_run_begins_without_what_only_its_report_needs():
    assert loaded("import scaling.cli.verbs.run", *SLOW, "numpy", "jinja2") == set()
