"""The machine of an MLPerf submission: system.json beside the log, or systems/NAME.json as submissions lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.reading import RefusedError, as_number, read_json
from scaling.spec.plan import RANKS_MAX

_COUNT = re.compile(r"^\s*\d+\s*x\s*(?=\D)|[_ -]n\d+(?=$|[_ -])|\b\d+[_ -]?nodes?\b", re.IGNORECASE)
"""How many nodes there are, in a system's name: its series has one name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What a submission says of its machine. Texts are empty where it says nothing."""

    name: str
    """Without the number of nodes."""
    submitter: str
    nodes: int | None
    devices_per_node: int | None
    device: str
    interconnect: str
    """Between the devices of a node."""
    network: str
    """Between nodes."""
    framework: str

    @property
    def devices(self) -> int | None:
        """All devices; None where one of the two numbers is missing."""
        return self.nodes * self.devices_per_node if self.nodes and self.devices_per_node else None


def read_system(log: Path) -> tuple[System, str]:
    """The system of a log, and why its description could not be read; empty where it was, or where there is none."""
    folder = log.absolute().parent
    places = [folder / "system.json", folder.parent / "system.json"]
    if len(folder.parents) > 2:
        places.append(folder.parents[2] / "systems" / f"{folder.parent.name}.json")
    for place in places:
        if not place.is_file():
            continue
        try:
            found = read_json(place)
        except (OSError, RefusedError) as error:
            return _system({}), f"{place}: cannot be read ({error})"
        return (_system(found), "") if isinstance(found, dict) else (_system({}), f"{place}: no JSON object")
    return _system({}), f"{log}: no description of its system beside it (system.json, or systems/NAME.json)"


def _system(found: dict[str, Any]) -> System:
    def text(key: str) -> str:
        value = found.get(key)
        return " ".join(value.split()) if isinstance(value, str) else ""

    def number(key: str) -> int | None:
        value = found.get(key)
        count = as_number(str(value).strip()) if isinstance(value, str | int) else None
        return count if count and count <= RANKS_MAX else None

    return System(
        name=_COUNT.sub("", text("system_name")).strip(" _-"),
        submitter=text("submitter"),
        nodes=number("number_of_nodes"),
        devices_per_node=number("accelerators_per_node"),
        device=text("accelerator_model_name"),
        interconnect=text("accelerator_interconnect"),
        network=text("host_networking") or text("host_network_card_count"),
        framework=text("framework"),
    )
