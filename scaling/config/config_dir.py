"""Files of configuration: those of a folder of one's own (`--config-dir DIR`), and what a file of a group may set.

A file of a group describes a machine, a model or a way of running. It may have come from elsewhere, so it is data: it
sets its own group, a topology also what TOPOLOGY_SETS lists, and nothing of Hydra's. Code is named by `_target_` of a
model and of data alone. Experiments are command lines in a file, and may set everything.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra._internal.config_repository import ConfigRepository

from scaling import resources
from scaling.config.yaml_text import load_file
from scaling.errors import InputError
from scaling.spec.environment import is_of_links, loads_code

TRUSTED = "experiment"
TOPOLOGY = "topology"
TOPOLOGY_SETS = (TOPOLOGY, "launcher", "cluster", "env")
"""What a topology with `# @package _global_` may set: `env` to variables of NCCL and Gloo, `cluster` as below."""
NOT_OF_CLUSTER = ("setup", "container")
"""Shell code and programs, which a topology may not bring."""
SBATCH = ("licenses", "switches", "nodelist", "exclude", "contiguous", "mem", "gres-flags", "distribution")
"""Options of sbatch that say where a job runs, and not what."""
NAMES_CODE = ("model", "data")
_NAME = r"[\w][\w.-]*"

FLAGS = ("--config-dir", "-cd")


def named(arguments: list[str]) -> Path | None:
    """The folder that a command line in Hydra's grammar names."""
    for at, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in FLAGS and (equals or at + 1 < len(arguments)):
            return Path(value if equals else arguments[at + 1])
    return None


def require_readable(folder: Path) -> None:
    """InputError where a file of a group cannot be read, or has the name of one of conf/.

    Hydra would take the one of conf/, and not say so. Only files of the groups are looked at: DIR/config.yaml, some
    other program's say, cannot be asked for by any name.
    """
    ours = resources.folder("conf")
    for group in sorted(path for path in ours.iterdir() if path.is_dir()):
        for path in sorted((folder / group.name).glob("*.yaml")):
            load_file(path)
            known = group / path.name
            if known.is_file() and path.read_bytes() != known.read_bytes():
                raise InputError(
                    f"{path}: {path.parent.name}={path.stem} is one of those that come with the program, which would "
                    "be taken instead; a name of its own is expected"
                )


@contextlib.contextmanager
def only_data() -> Iterator[None]:
    """Inside, Hydra takes from the files of groups what they may set, wherever they lie; else InputError."""
    load = ConfigRepository.load_config

    def checked(repository: ConfigRepository, config_path: str) -> Any:
        result = load(repository, config_path)
        if result is not None and result.path.startswith("file:"):
            folder = Path(result.path.removeprefix("file://"))
            path = folder / f"{config_path.removesuffix('.yaml')}.yaml"
            if path.parent.resolve() != resources.folder("conf").resolve():  # conf/config.yaml is ours
                raw = load_file(path)
                group = str(path.parent.relative_to(folder))
                _check(str(path), group, result.header.get("package"), raw if isinstance(raw, dict) else {})
        return result

    ConfigRepository.load_config = checked  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ConfigRepository.load_config = load  # type: ignore[method-assign]


def _check(where: str, group: str, package: str | None, values: dict[Any, Any]) -> None:
    """InputError where a file sets what it may not."""
    if group == TRUSTED:
        return
    if group == "." or not (resources.folder("conf") / group).is_dir():
        raise InputError(f"{where}: it is in none of the groups' folders, so it is not read")
    everywhere = package == "_global_" and group == TOPOLOGY
    if package not in (None, group, "_group_") and not everywhere:
        raise InputError(
            f"{where}: @package {package}: a file of {group}/ sets {group} alone; an experiment sets more"
        )
    for item in values.pop("defaults", None) or []:
        _check_default(where, group, item)
    own: Any = values
    if everywhere:
        for key in values:
            if key not in TOPOLOGY_SETS:
                raise InputError(
                    f"{where}: {key}: a topology sets {', '.join(TOPOLOGY_SETS)}; an experiment sets more"
                )
        cluster, own = values.get("cluster") or {}, values.get(TOPOLOGY) or {}
        given = {f"cluster.{key}" for key in NOT_OF_CLUSTER if key in cluster}
        given |= {f"cluster.sbatch.{key}" for key in cluster.get("sbatch") or () if key not in SBATCH}
        named = {"env": values.get("env"), "cluster.env": cluster.get("env")}
        given |= {
            f"{at}.{name}" for at, env in named.items() for name in env or () if not is_of_links(str(name))
        }
        if given:
            raise InputError(
                f"{where}: {min(given)}: a topology does not set it; give it on the command line"
            )
    for name in own.get("env") or () if group == "cluster" else ():
        if loads_code(str(name)):
            raise InputError(
                f"{where}: env.{name}: loads code; set it in the environment, or as +env.{name}=..."
            )
    target = values.pop("_target_", None) if group in NAMES_CODE else None
    _check_values(where, [target, values])


def _check_default(where: str, group: str, item: Any) -> None:
    """A file may begin with another one of its group; a topology also names its launcher and cluster."""
    groups = (group, "launcher", "cluster") if group == TOPOLOGY else (group,)
    if isinstance(item, str):
        fine = re.fullmatch(rf"_self_|(/?{group}/)?{_NAME}(@{group})?", item)
    else:
        ((key, value),) = item.items() if isinstance(item, dict) and len(item) == 1 else (("", ""),)
        fine = re.fullmatch(
            rf"((override|optional) )?/?({'|'.join(groups)})(@{group})?:{_NAME}", f"{key}:{value}"
        )
    if not fine:
        raise InputError(f"{where}: defaults: {item}: another file of {' or '.join(groups)} is expected")


def _check_values(where: str, value: Any) -> None:
    """Nothing that Hydra would call, and nothing that is looked up elsewhere, such as `${oc.env:NAME}`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if str(key).startswith("_") and str(key).endswith("_"):
                raise InputError(f"{where}: {key}: only a model and data name code, as their first keys")
            _check_values(where, inner)
    elif isinstance(value, list):
        for inner in value:
            _check_values(where, inner)
    elif isinstance(value, str) and re.search(r"\$\{.*:", value, re.DOTALL):
        raise InputError(f"{where}: {value}: a value is expected; nothing is looked up for a file")
