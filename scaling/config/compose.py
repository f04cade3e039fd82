"""The one door from Hydra: schema dataclasses in, a frozen `Spec` out. Nothing else imports hydra or omegaconf."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scaling import resources
from scaling.config import config_dir, yaml_text
from scaling.config.run import to_spec
from scaling.config.schema import Composed, Config, WhatIfConfig
from scaling.errors import InputError
from scaling.hardware.devices import Machine, find_machine
from scaling.spec.request import Request, Requests

EXAMPLES = {
    "topology.name": "mine",
    "topology.kind": "local",
    "model._target_": "package.module.factory",
    "data._target_": "package.module.Dataset",
    "data.path": "/data/images",
}
"""What to say where a mandatory key has no value."""

BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that lists combinations; any other one wants to know how a run went."""


def requests(verb: str, arguments: list[str], measure: Callable[[Request], float] | None = None) -> Requests:
    """Compose a command line with Hydra itself (all its flags and grammar work) and check every result.

    Raises InputError with one line for anything that is wrong; nothing has been written by then. A sweeper that
    searches gets what `measure` says of each request before it names the next: these have been measured then.
    """
    ConfigStore.instance().store(name="schema", node=Config)
    composed: list[DictConfig] = []
    terminal = sys.stderr

    def task(cfg: DictConfig) -> float | None:
        job = HydraConfig.get()  # Hydra set up this job: fail here rather than later
        composed.append(cfg)
        sweeper = job.sweeper["_target_"]
        if job.mode != RunMode.MULTIRUN or sweeper == BASIC_SWEEPER:
            return None
        if measure is None:
            raise InputError(f"hydra/sweeper: {sweeper} searches by results; `scaling run` has them")
        with contextlib.redirect_stderr(terminal):
            return measure(_request(cfg, find_machine()))

    own = config_dir.named(arguments)
    if own is not None:
        config_dir.require_readable(own)
    if not any(argument.startswith(("-", "hydra", "+hydra", "~")) for argument in arguments):
        return Requests(items=(_request(_composed(arguments), find_machine()),), multirun=False)
    multirun = "-m" in arguments or "--multirun" in arguments
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of being printed
    main = hydra.main(config_path=str(resources.folder("conf")), config_name="config", version_base="1.3")(
        task
    )
    errors = io.StringIO()
    argv, sys.argv = sys.argv, [f"scaling {verb}", *arguments]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="scaling-sweep-") as scratch,
            contextlib.redirect_stderr(errors),
        ):
            if multirun:  # the sweeper insists on a folder of its own
                sys.argv.append(f"hydra.sweep.dir={scratch}")
            main()
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_one_line(error)) from error
    except SystemExit as stop:
        if stop.code in (0, None):
            return Requests(items=(), multirun=multirun)
        raise InputError(_last_line(errors.getvalue())) from stop
    finally:
        sys.argv = argv
    machine = find_machine()
    return Requests(items=tuple(_request(cfg, machine) for cfg in composed), multirun=multirun)


def _composed(overrides: list[str]) -> DictConfig:
    """Overrides of one run, composed once. Hydra's own main composes twice, and is needed for its flags and sweeps."""
    try:
        with hydra.initialize_config_dir(str(resources.folder("conf")), version_base="1.3"):
            return hydra.compose("config", overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_one_line(error)) from error


def composed(overrides: list[str]) -> Composed:
    """Overrides of one run as a config that is not checked yet. InputError with one line where they cannot be read."""
    ConfigStore.instance().store(name="schema", node=Config)
    try:
        return OmegaConf.to_object(_composed(overrides))
    except OmegaConfBaseException as error:
        raise InputError(_one_line(error)) from error


def changed(measured: str, arguments: list[str]) -> tuple[Composed, Composed]:
    """A run's config.yaml unchanged, and with a command line's overrides; nothing in it is executed.

    Only keys of the schema are read from the file, each value literally. The file was resolved when it was written, so
    text that looks like an interpolation (`${oc.env:...}`) stays text, and Hydra's keys are ignored. A topology that
    is named replaces the run's. InputError with one line for a file that cannot be read.
    """
    store = ConfigStore.instance()
    store.store(name="whatif", node=WhatIfConfig)
    try:
        base = yaml_text.load(measured, "config.yaml")
        if not isinstance(base, dict):
            raise InputError("config.yaml: keys and values are expected, as `scaling run` writes them")
        ours = {field.name for field in dataclasses.fields(Config)}
        named = {override.key_or_group for override in OverridesParser.create().parse_overrides(arguments)}
        groups = [{path.name: None} for path in resources.folder("conf").iterdir() if path.is_dir()]
        kept = {key: _literal(value) for key, value in base.items() if key in ours}
        found = [OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(WhatIfConfig), kept))]
        node = {key: value for key, value in kept.items() if key not in {"topology"} & named}
        store.store(name="measured", node={**node, "defaults": ["whatif", "_self_", *groups]})
        with hydra.initialize_config_dir(str(resources.folder("conf")), version_base="1.3"):
            found.append(OmegaConf.to_object(hydra.compose("measured", overrides=arguments)))
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_one_line(error)) from error
    before, after = found
    assert isinstance(before, WhatIfConfig)
    assert isinstance(after, WhatIfConfig)
    return before, after


def _literal(value: Any) -> Any:
    """The same value with nothing in it for OmegaConf to resolve."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", value)
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

    ConfigStore.instance().store(name="schema", node=Config)
    search = create_config_search_path(str(resources.folder("conf")))
    loader = Hydra.create_main_hydra2("scaling", search).config_loader
    plugin = next(p for p in Plugins.instance().discover(CompletionPlugin) if p.provides() == "bash")  # type: ignore[attr-defined]
    GlobalHydra.instance().clear()
    found: list[str] = plugin(loader)._query("config", word)  # type: ignore[call-arg, attr-defined]  # noqa: SLF001
    return found


def _request(cfg: DictConfig, machine: Machine) -> Request:
    try:
        config = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise InputError(_one_line(error)) from error
    assert isinstance(config, Config)
    run_dir = None if config.run_dir is None else Path(config.run_dir).expanduser()
    return Request(spec=to_spec(config, machine), run_dir=run_dir, yaml=OmegaConf.to_yaml(cfg, resolve=True))


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip() if text.strip() else "the command line could not be read"


def _one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's messages run over several lines; keep what, where and what would be accepted."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name}: no such {group}; available: {', '.join(error.options)}"
    text = str(error).strip()
    cause: BaseException | None = error.__cause__
    beside: Sequence[str] = ()
    """Keys of the group that a key is missing in."""
    while cause is not None:
        if isinstance(cause, OmegaConfBaseException):
            if isinstance(cause.parent_node, DictConfig):
                beside = [str(name) for name in cause.parent_node]
            text = str(cause).strip() if len(str(cause)) > 5 else text
        cause = cause.__cause__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read ({lines[0]}); key=value is expected, lists as [1,2]"
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key:")), "")
    message = lines[0] if lines else type(error).__name__
    if "is not a ListConfig" in message:
        return f"{key}: a list is expected, such as {key}=[1,2]"
    if "missing mandatory value" in message.lower():
        return f"{key}: a value is expected, such as {key}={EXAMPLES.get(key, '...')}"
    message = message.removesuffix(".").replace("To append to your config use", "To add a new key use")
    if "is not in struct" in message or "not in '" in message:
        return _unknown_key(message, key, beside)
    return f"{key}: {message}" if key and key not in message else message


def _unknown_key(message: str, key: str, beside: Sequence[str]) -> str:
    group, dot, _ = key.rpartition(".")
    # A model's own keys are in no schema, only beside the one that is missing.
    known = sorted({*_keys(OmegaConf.structured(Config)), *(f"{group}{dot}{name}" for name in beside)})
    near = difflib.get_close_matches(key or message, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "see `scaling run --help` for the keys there are"
    return f"{key or message}: no such key; {hint}"


def _keys(node: Any, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name in node:
        path = f"{prefix}{name}"
        found.append(path)
        if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
            found += _keys(node[name], path + ".")
    return found
