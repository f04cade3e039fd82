"""The one door from Hydra: schema dataclasses in, a frozen `Spec` out. Nothing else imports hydra or omegaconf."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from scaling import resources
from scaling.config import config_dir, messages, yaml_text
from scaling.config.run import to_spec
from scaling.config.schema import Composed, Config, WhatIfConfig
from scaling.errors import InputError
from scaling.hardware.devices import Machine, find_machine
from scaling.spec.request import Request, Requests

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
            messages.one_line(arguments),
            config_dir.only_data(),
        ):
            if multirun:  # the sweeper insists on a folder of its own
                sys.argv.append(f"hydra.sweep.dir={scratch}")
            main()
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
    with (
        messages.one_line(overrides),
        config_dir.only_data(),
        hydra.initialize_config_dir(str(resources.folder("conf")), version_base="1.3"),
    ):
        return hydra.compose("config", overrides=overrides)


def composed(overrides: list[str]) -> Composed:
    """Overrides of one run as a config that is not checked yet. InputError with one line where they cannot be read."""
    ConfigStore.instance().store(name="schema", node=Config)
    with messages.one_line():
        return OmegaConf.to_object(_composed(overrides))


def changed(measured: str, arguments: list[str]) -> tuple[Composed, Composed]:
    """A run's config.yaml unchanged, and with a command line's overrides; nothing in it is executed.

    Only keys of the schema are read from the file, each value literally. The file was resolved when it was written, so
    text that looks like an interpolation (`${oc.env:...}`) stays text, and Hydra's keys are ignored. A topology that
    is named replaces the run's. InputError with one line for a file that cannot be read.
    """
    store = ConfigStore.instance()
    store.store(name="whatif", node=WhatIfConfig)
    with messages.one_line(arguments):
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
        with (
            config_dir.only_data(),
            hydra.initialize_config_dir(str(resources.folder("conf")), version_base="1.3"),
        ):
            found.append(OmegaConf.to_object(hydra.compose("measured", overrides=arguments)))
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
    with messages.one_line():
        config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    run_dir = None if config.run_dir is None else Path(config.run_dir).expanduser()
    return Request(spec=to_spec(config, machine), run_dir=run_dir, yaml=OmegaConf.to_yaml(cfg, resolve=True))


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip() if text.strip() else "the command line could not be read"
