"""Hydra's composition, kept: a choice of groups is composed once a process, and values are put into a copy of it.

Most tests of settings differ in values alone, and composing takes Hydra a third of a second. What Hydra itself has to
say (a group that is not there, an override that cannot be read) it still says. `--hydra-anew` leaves all to Hydra.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from scaling import resources
from scaling.config import compose

GROUPS = {path.name for path in resources.folder("conf").iterdir() if path.is_dir()}


def kept(anew: Callable[[list[str]], DictConfig]) -> Callable[[list[str]], DictConfig]:
    """What gives the same as `anew`, with the groups composed once."""

    @functools.cache
    def chosen(groups: tuple[str, ...]) -> DictConfig:
        return anew(list(groups))

    def composed(overrides: list[str]) -> DictConfig:
        groups = tuple(text for text in overrides if text.partition("=")[0] in GROUPS)
        values = [text for text in overrides if text not in groups]
        if any(text.startswith(("+", "~")) for text in values):
            return anew(overrides)
        parsed = OverridesParser.create().parse_overrides(values) if readable(values) else None
        if parsed is None or any(one.is_sweep_override() or one.is_delete() for one in parsed):
            return anew(overrides)
        config = copy.deepcopy(chosen(groups))
        before = set(known(config))
        if any(one.key_or_group not in before for one in parsed):
            return anew(overrides)
        try:
            for one in parsed:
                OmegaConf.update(config, one.key_or_group, one.value(), merge=True)
        except Exception:  # noqa: BLE001  # whatever it is, Hydra has its own words for it
            return anew(overrides)
        return config

    return composed


def readable(values: list[str]) -> bool:
    """Whether Hydra's grammar takes all of them."""
    try:
        OverridesParser.create().parse_overrides(values)
    except Exception:  # noqa: BLE001
        return False
    return True


def known(node: DictConfig, prefix: str = "") -> list[str]:
    """The dotted keys that a composed config has."""
    found: list[str] = []
    for name in node:
        found.append(f"{prefix}{name}")
        if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
            found += known(node[name], f"{prefix}{name}.")
    return found


def install() -> None:
    """From here on in this process."""
    compose._composed = kept(compose._composed)
