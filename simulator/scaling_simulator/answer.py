"""`python -m scaling_simulator.answer`: a Simulation as JSON on standard input, a Simulated on the output."""

from __future__ import annotations

import json
import os
import sys

from scaling.errors import InputError
from scaling.records.files import decode, encode
from scaling_simulator.build import BuildError
from scaling_simulator.device import load
from scaling_simulator.simulation import Simulation


def main() -> None:
    """Simulate and print. A program that fails is a `failed` simulation; without a device it ends with status 2."""
    asked = decode(Simulation, json.load(sys.stdin))
    # What the model and its libraries print is not part of the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        load()
    except BuildError as error:
        sys.exit(_without_device(error))
    from scaling_simulator.program import simulate  # noqa: PLC0415  (brings torch's FSDP along)

    json.dump(encode(simulate(asked)), answer)
    answer.flush()
    os._exit(0)  # the device's threads may still hold tasks of a program that failed


def _without_device(error: BuildError) -> int:
    print(error, file=sys.stderr)
    return InputError.exit_code


if __name__ == "__main__":
    main()
