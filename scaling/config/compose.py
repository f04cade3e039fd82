"""The one door from Hydra: schema dataclasses in, a frozen `Spec` out. Nothing else imports hydra or omegaconf.

A file of a group describes a machine, a model or a way of running. It may have come from elsewhere, so it is data: it
sets its own group, a topology also what TOPOLOGY_SETS lists, and nothing of Hydra's. Code is named by `_target_` of a
model and of data alone. Experiments are command lines in a file, and may set everything.

At the end: the command line of `scaling launch`, and which overrides a launch of one's own script takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import GroupDefault, InputDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from scaling import resources
from scaling.config import messages
from scaling.config.run import to_spec
from scaling.config.schema import Composed, Config, WhatIfConfig, shaped
from scaling.errors import InputError
from scaling.hardware.devices import Machine, find_machine
from scaling.reading import without_tilde
from scaling.settings.environment import is_of_links, is_of_machine
from scaling.settings.plan import Request, Requests
from scaling.settings.run import Tracking

CONF = resources.folder("conf")
TRUSTED = "experiment"
TOPOLOGY = "topology"
TOPOLOGY_SETS = (TOPOLOGY, "launcher", "cluster", "env")
"""What a topology with `# @package _global_` may set: `env` to variables of NCCL and Gloo, `cluster` as below."""
NOT_OF_CLUSTER = ("setup", "container", "srun")
"""Shell code and programs (srun has --task-prolog), which a topology may not bring."""
SBATCH = ("licenses", "switches", "nodelist", "exclude", "contiguous", "mem", "gres-flags", "distribution")
"""Options of sbatch that say where a job runs, and not what."""
NAMES_CODE = ("model", "data")
_NAME = r"[\w][\w.-]*"

_LISTED = re.compile(r"^(\+{0,2}cluster\.s(?:batch|run)\.[a-z-]+=)([^'\"\[{$]+\[[^'\"]*)$")
"""Node names as Slurm writes them, such as n[1-2], which Hydra's grammar only takes in quotes of its own."""

FLAGS = ("--config-dir", "-cd")

_SCHEMAS = ConfigStore.instance()
_SCHEMAS.store(name="schema", node=Config)


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
    for group in sorted(path for path in CONF.iterdir() if path.is_dir()):
        for path in sorted((folder / group.name).glob("*.yaml")):
            messages.load_file(path)
            shipped = group / path.name
            if shipped.is_file() and path.read_bytes() != shipped.read_bytes():
                raise InputError(
                    f"{path}: {path.parent.name}={path.stem} is one of those that come with the program, which would "
                    "be taken instead; a name of its own is expected"
                )


@contextlib.contextmanager
def only_data() -> Iterator[None]:
    """Inside, Hydra takes from the files of groups what they may set, wherever they lie; else InputError."""
    load = ConfigRepository.load_config

    def checked(repository: ConfigRepository, config_path: str) -> Any:
        group, name = os.path.split(config_path.removesuffix(".yaml"))
        with shaped(config_path, group):
            result = load(repository, config_path)
        if result is not None and result.path.startswith("file:"):
            folder = Path(result.path.removeprefix("file://"))
            if group or folder.resolve() != CONF.resolve():  # conf/config.yaml is ours
                where = str(folder / group / f"{name}.yaml")
                with shaped(where, group):
                    _check(where, group, result)
        return result

    ConfigRepository.load_config = checked  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ConfigRepository.load_config = load  # type: ignore[method-assign]


def _check(where: str, group: str, loaded: ConfigResult) -> None:
    """InputError where a file sets what it may not, by what Hydra made of it: it may have been changed since."""
    if group == TRUSTED:
        return
    if not group or not (CONF / group).is_dir():
        raise InputError(f"{where}: it is in none of the groups' folders, so it is not read")
    values: Any = OmegaConf.to_container(loaded.config)
    package = loaded.header.get("package")
    for item in loaded.defaults_list or ():
        _check_default(where, group, item)
    everywhere = package == "_global_" and group == TOPOLOGY
    if package not in (None, group, "_group_") and not everywhere:
        raise InputError(
            f"{where}: @package {package}: a file of {group}/ sets {group} alone; an experiment sets more"
        )
    if everywhere:
        for key in values:
            if key not in TOPOLOGY_SETS:
                raise InputError(
                    f"{where}: {key}: a topology sets {', '.join(TOPOLOGY_SETS)}; an experiment sets more"
                )
        cluster = values.get("cluster") or {}
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
    for name in values.get("env") or () if group == "cluster" else ():
        if not is_of_machine(str(name)):
            raise InputError(
                f"{where}: env.{name}: a cluster's file sets variables of NCCL, Gloo, UCX, CUDA, PyTorch and OpenMP "
                f"that name no file; set it in the environment, or as +cluster.env.{name}=..."
            )
    target = values.pop("_target_", None) if group in NAMES_CODE else None
    _check_values(where, [target, values])


def _check_default(where: str, group: str, item: InputDefault) -> None:
    """A file may begin with another one of its group; a topology also names its launcher and cluster."""
    groups = (group, "launcher", "cluster") if group == TOPOLOGY else (group,)
    text = f"{item.group}: {item.value}" if isinstance(item, GroupDefault) else getattr(item, "path", "")
    fine = rf"_self_|(/?{group}/)?{_NAME}|/?({'|'.join(groups)}): {_NAME}"
    if item.package not in (None, group) or not re.fullmatch(fine, text):
        raise InputError(f"{where}: defaults: {text}: another file of {' or '.join(groups)} is expected")


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


BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that lists combinations; any other one wants to know how a run went before it names the next."""


def requests(verb: str, arguments: list[str]) -> Requests:
    """Compose a command line with Hydra itself (all its flags and grammar work) and check every result.

    Raises InputError with one line for anything that is wrong; nothing has been written by then.
    """
    composed: list[DictConfig] = []
    refused: list[InputError] = []

    def task(cfg: DictConfig) -> None:
        job = HydraConfig.get()  # Hydra set up this job: fail here rather than later
        composed.append(cfg)
        sweeper = job.sweeper["_target_"]
        if job.mode == RunMode.MULTIRUN and sweeper != BASIC_SWEEPER:
            refused.append(
                InputError(
                    f"hydra/sweeper: {sweeper} searches by results, which is removed; -m alone measures every "
                    "combination that is listed, such as ddp.bucket_cap_mb=5,25,100, and compares them"
                )
            )
            raise refused[0]

    arguments = [_LISTED.sub(r"\1'\2'", word) for word in arguments]
    folder = named(arguments)
    if folder is not None:
        require_readable(folder)
    if not any(argument.startswith(("-", "hydra", "+hydra", "~")) for argument in arguments):
        return Requests(items=(_request(_composed(arguments), find_machine()),), multirun=False)
    multirun = not {"-m", "--multirun", "hydra.mode=MULTIRUN"}.isdisjoint(arguments)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of being printed
    main = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(task)
    errors = io.StringIO()
    argv, sys.argv = sys.argv, [f"scaling {verb}", *arguments]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="scaling-sweep-") as scratch,
            contextlib.redirect_stderr(errors),
            messages.one_line(arguments),
            only_data(),
        ):
            if multirun:  # the sweeper insists on a folder of its own
                sys.argv.append(f"hydra.sweep.dir={scratch}")
            main()
    except SystemExit as stop:
        if stop.code in (0, None):
            return Requests(items=(), multirun=multirun)
        lines = errors.getvalue().strip().splitlines() or ["the command line could not be read"]
        raise InputError(lines[-1].strip()) from stop
    finally:
        sys.argv = argv
    if refused:  # a sweeper may go on after an error
        raise refused[0]
    machine = find_machine()
    return Requests(items=tuple(_request(cfg, machine) for cfg in composed), multirun=multirun)


def _composed(overrides: list[str]) -> DictConfig:
    """Overrides of one run, composed once. Hydra's own main composes twice, and is needed for its flags and sweeps."""
    with (
        messages.one_line(overrides),
        only_data(),
        hydra.initialize_config_dir(str(CONF), version_base="1.3"),
    ):
        return hydra.compose("config", overrides=overrides)


def composed(overrides: list[str]) -> Composed:
    """Overrides of one run as a config that is not checked yet. InputError with one line where they cannot be read."""
    with messages.one_line():
        return OmegaConf.to_object(_composed(overrides))


def changed(measured: str, arguments: list[str]) -> tuple[Composed, Composed]:
    """A run's config.yaml unchanged, and with a command line's overrides; nothing in it is executed.

    Only keys of the schema are read from the file, each value literally. The file was resolved when it was written, so
    text that looks like an interpolation (`${oc.env:...}`) stays text, and Hydra's keys are ignored. A topology that
    is named replaces the run's. InputError with one line for a file that cannot be read.
    """
    with messages.one_line(arguments):
        base = messages.load(measured, "config.yaml")
        if not isinstance(base, dict):
            raise InputError("config.yaml: keys and values are expected, as `scaling run` writes them")
        ours = {field.name for field in dataclasses.fields(Config)}
        named = {override.key_or_group for override in OverridesParser.create().parse_overrides(arguments)}
        groups = [{path.name: None} for path in CONF.iterdir() if path.is_dir()]
        kept = {key: _literal(value) for key, value in base.items() if key in ours}
        if isinstance(kept.get("tracking"), dict):
            kept["tracking"] = {k: v for k, v in kept["tracking"].items() if k not in Tracking.GONE}
        before = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(WhatIfConfig), kept))
        node = {key: value for key, value in kept.items() if key not in {"topology"} & named}
        _SCHEMAS.store(name="whatif", node=WhatIfConfig)
        _SCHEMAS.store(name="measured", node={**node, "defaults": ["whatif", "_self_", *groups]})
        with only_data(), hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return before, OmegaConf.to_object(hydra.compose("measured", overrides=arguments))


def _literal(value: Any) -> Any:
    """The value with nothing in it for OmegaConf to resolve."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    if isinstance(value, dict):
        return {key: _literal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_literal(inner) for inner in value]
    return value


def again(measured: str, arguments: list[str]) -> Request:
    """A run's own config.yaml with overrides, to be measured again."""
    config = changed(measured, arguments)[1]
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    text = OmegaConf.to_yaml(OmegaConf.structured(Config(**fields)))
    return Request(spec=to_spec(config, find_machine()), run_dir=None, yaml=text)


def candidates(word: str) -> list[str]:
    """What `word` on a `scaling run` line can be completed to, as Hydra's own completion has it."""
    from hydra._internal.hydra import Hydra  # noqa: PLC0415
    from hydra._internal.utils import create_config_search_path  # noqa: PLC0415
    from hydra.core.global_hydra import GlobalHydra  # noqa: PLC0415
    from hydra.core.plugins import Plugins  # noqa: PLC0415
    from hydra.plugins.completion_plugin import CompletionPlugin  # noqa: PLC0415

    search = create_config_search_path(str(CONF))
    loader = Hydra.create_main_hydra2("scaling", search).config_loader
    plugin = next(p for p in Plugins.instance().discover(CompletionPlugin) if p.provides() == "bash")  # type: ignore[attr-defined]
    GlobalHydra.instance().clear()
    completions: list[str] = plugin(loader)._query("config", word)  # type: ignore[call-arg, attr-defined]  # noqa: SLF001
    return completions


def _request(cfg: DictConfig, machine: Machine) -> Request:
    with messages.one_line():
        config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    run_dir = None if config.run_dir is None else without_tilde(config.run_dir, f"run_dir={config.run_dir}")
    return Request(spec=to_spec(config, machine), run_dir=run_dir, yaml=OmegaConf.to_yaml(cfg, resolve=True))


KEYS = ("topology", "launcher", "cluster", "env", "threads", "repeats", "world_sizes", "run_dir")
"""What says where and how often a script runs; all else is the script's own."""
REPEATS = 2
_VALUED = ("--world-sizes", "--time-limit", "--fresh", *FLAGS)
"""Options before the script that are followed by a value."""


def cut(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(our options and overrides, the script and its arguments); the script is the first word that is neither.

    As with `python`, `-m MODULE` stands in place of a script.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return list(words[:index]), list(words[index + 1 :])
        if word == "-m" or (not word.startswith("-") and ("=" not in word or Path(word).is_file())):
            break
        index += 2 if word in _VALUED else 1
    return list(words[:index]), list(words[index:])


def script_name(script: Sequence[str]) -> str:
    """What messages call the script. InputError where there is no such file or module."""
    if not script or script == ["-m"]:
        raise InputError(
            "scaling launch: a script is expected after the options, such as train.py or -m package.train"
        )
    if script[0] != "-m":
        if not Path(script[0]).is_file():
            raise InputError(
                f"{script[0]}: no such file; the script is expected after the options, such as train.py"
            )
        return Path(script[0]).name
    top, *rest = script[1].split(".")
    here = Path(top, *rest)
    below = here.is_dir() or here.with_suffix(".py").is_file()
    if not below and not (top.isidentifier() and importlib.util.find_spec(top)):
        raise InputError(f"-m {script[1]}: no such module here; one is expected, such as -m package.train")
    return script[1]


def overrides(words: Sequence[str], world_sizes: str | None) -> list[str]:
    """What to compose. InputError for a setting that a script has itself, or without any world size."""
    arguments = list(words)
    keys = {word.lstrip("+~").partition("=")[0] for word in words if not word.startswith("-")}
    for key in keys:
        if key.partition(".")[0].partition("@")[0] not in KEYS:
            raise InputError(
                f"{key}: the script decides it, not `scaling launch`, which takes {', '.join(KEYS)}; "
                "pass the script's own arguments after it"
            )
    if world_sizes is not None:
        parts = world_sizes.strip("[]").split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise InputError(f"--world-sizes {world_sizes}: numbers of ranks are expected, such as 1,2,4")
        arguments.append(f"world_sizes=[{','.join(part.strip() for part in parts)}]")
    elif "world_sizes" not in keys and not any(word.startswith("-") for word in words):
        raise InputError("scaling launch: --world-sizes is expected, such as --world-sizes 1,2,4")
    if "repeats" not in keys:
        arguments.append(f"repeats={REPEATS}")
    return arguments
