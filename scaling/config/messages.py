"""What Hydra and OmegaConf refuse, in one line: what, where, and what would be accepted.

YAML that may come from elsewhere: bounded in depth and size before an object is made of it.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from scaling import resources
from scaling.config.schema import Config
from scaling.errors import InputError, while_reading
from scaling.reading import DEPTH_MAX, YAML_BYTES_MAX, RefusedError, read_text

EXAMPLES = {
    "topology.name": "mine",
    "topology.kind": "local",
    "model._target_": "package.module.factory",
    "data._target_": "package.module.Dataset",
    "data.path": "/data/images",
}
"""What to say where a mandatory key has no value."""

KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
"""OmegaConf's word for a type -> ours."""

NO_NAME = "Config group override must be a string or a list"
"""How Hydra begins its ValueError about `precision=16` or `model=null`."""


@contextlib.contextmanager
def one_line(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turn what Hydra raises within, about a command line's `arguments`, into an InputError of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_message(error)) from error
    except (ValueError, TypeError) as error:  # Hydra takes the items of a list for names unseen: a TypeError
        message = _no_name(arguments)
        if message is None and not str(error).startswith(NO_NAME):
            raise
        raise InputError(message or f"{NO_NAME.lower()}: a name is expected") from error


def _message(error: Exception) -> str:
    """Their messages run over several lines; keep what, where and what would be accepted."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        near = difflib.get_close_matches(name, error.options, n=2)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        return f"{group}={name}: no such {group}; {meant}available: {', '.join(error.options)}"
    text = str(error).strip()
    value: Any = None
    cause: BaseException | None = error
    beside: Sequence[str] = ()
    """Keys of the group that a key is missing in."""
    while cause is not None:
        if isinstance(cause, OmegaConfBaseException):
            if isinstance(cause.parent_node, DictConfig):
                beside = [str(name) for name in cause.parent_node]
            value = cause.value
            text = str(cause).strip() if len(str(cause)) > 5 else text
            break  # with OC_CAUSE=1, or in a debugger, it has causes of OmegaConf's own, which may be a circle
        cause = cause.__cause__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read ({lines[0]}); key=value is expected, lists as [1,2]"
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key:")), "")
    message = lines[0] if lines else type(error).__name__
    return _in_our_words(message, key, value, beside)


def _in_our_words(message: str, key: str, value: Any, beside: Sequence[str]) -> str:
    if match := re.fullmatch(r"Ambiguous value for argument '(.+?=(.*))'", message):
        return f"{match[1]}: one value is expected; with -m each is a run of its own (a list: [{match[2]}])"
    if match := re.match(r"Could not append to config\. An item is already at '(.+)'", message):
        return f"+{match[1]}: that key is there already; {match[1]}= changes it"
    if match := re.search(r"could not be converted to (Integer|Float)|not a valid (bool)", message):
        return f"{key}={value}: {KINDS[match[1] or match[2]]} is expected"
    if message.endswith("is not Optional"):
        return f"{key}=null: a value is expected"
    if re.search(r"Cannot merge DictConfig with|is not a subclass of \w+Config", message):
        example = next((name for name in _all_keys() if name.startswith(f"{key}.")), f"{key}.NAME")
        return f"{key}: its keys are set one by one, such as {example}=..."
    if "is not a ListConfig" in message:
        return f"{key}: a list is expected, such as {key}=[{value}]"
    if "missing mandatory value" in message.lower():
        return f"{key}: a value is expected, such as {key}={EXAMPLES.get(key, '...')}"
    message = message.removesuffix(".").replace("To append to your config use", "To add a new key use")
    if "is not in struct" in message or "not in '" in message:
        return _unknown_key(message, key, beside)
    return f"{key}: {message}" if key and key not in message else message


def _unknown_key(message: str, key: str, beside: Sequence[str]) -> str:
    group, dot, _ = key.rpartition(".")
    if group in ("env", "cluster.env", "cluster.sbatch"):  # the user's own names, of which none is known
        return f"{key}: a new name takes a +, as in +{key}=..."
    # A model's own keys are in no schema, only beside the one that is missing.
    keys = sorted({*_all_keys(), *(f"{group}{dot}{name}" for name in beside)})
    near = difflib.get_close_matches(key or message, keys, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "see `scaling run --help` for the keys there are"
    return f"{key or message}: no such key; {hint}"


def _all_keys() -> list[str]:
    """The keys that every configuration has."""
    return keys_of(OmegaConf.structured(Config))


def keys_of(node: Any, prefix: str = "") -> list[str]:
    """All keys of a configuration, groups and what is in them, such as `fsdp` and `fsdp.prefetch`."""
    keys: list[str] = []
    for name in node:
        path = f"{prefix}{name}"
        keys.append(path)
        if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
            keys += keys_of(node[name], path + ".")
    return keys


def _no_name(arguments: Sequence[str]) -> str | None:
    """A group that is given what is no name: `precision=16`, `model=null`, `model=[1]`; None where none is."""
    for argument in arguments:
        group = argument.lstrip("+").partition("=")[0]
        folder = resources.folder("conf") / group
        if not group.isidentifier() or not folder.is_dir():
            continue
        with contextlib.suppress(HydraException):
            (override,) = OverridesParser.create().parse_overrides([argument])
            several = override.is_sweep_override()
            values = list(override.sweep_iterator()) if several else [override.value()]
            items = [item for value in values for item in (value if isinstance(value, list) else [value])]
            if any(item is None or isinstance(item, (int, float)) for item in items):
                names = sorted(path.stem for path in folder.glob("*.yaml"))
                return f"{argument}: a name is expected; available: {', '.join(names)}"
    return None


NODES_MAX = 20_000
"""Keys, values and lists, with every alias written out; a run's own config.yaml has some hundred."""


def load_file(path: Path) -> Any:
    """The values of a YAML file; InputError where it cannot be read."""
    with while_reading(path, "a YAML file is expected"):
        text = read_text(path, YAML_BYTES_MAX)
    return load(text, str(path))


def load(text: str, where: str) -> Any:
    """The values of a YAML text, read as OmegaConf does but for interpolations; InputError where it is none."""
    try:
        _check(text)
        return get_yaml_loader()(text).get_single_data()  # a SafeLoader that reads 1e-4 as a number
    except (yaml.YAMLError, ValueError, TypeError) as error:  # ValueError: a date or number that there is not
        raise InputError(
            f"{where}: not the YAML that is expected ({' '.join(str(error).split())[:160]})"
        ) from error


def _check(text: str) -> None:
    """RefusedError for a text that is nested too deep or grows too large where its aliases are written out."""
    sizes = [0]  # nodes so far inside each open list or mapping
    names: list[str | None] = []
    anchored: dict[str, int] = {}
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            names.append(event.anchor)
            if len(sizes) > DEPTH_MAX:
                raise RefusedError(f"nested more than {DEPTH_MAX} levels deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            size, name = sizes.pop(), names.pop()
        elif isinstance(event, yaml.ScalarEvent):
            size, name = 1, event.anchor
        elif isinstance(event, yaml.AliasEvent):  # one that is unknown here stands inside what it names
            size, name = anchored.get(event.anchor, NODES_MAX), None
        else:
            continue
        sizes[-1] += size
        if name is not None:
            anchored[name] = size
        if sizes[-1] > NODES_MAX:
            raise RefusedError(f"more than {NODES_MAX} values, with its aliases written out")
