"""`python -m scaling.worker.simulated.answer`: a Simulation as JSON on standard input, a Simulated on the output."""

from __future__ import annotations

import json
import os
import sys

from scaling.records.codec import decode, encode
from scaling.spec.simulation import Simulated, Simulation
from scaling.worker.simulated.build import BuildError
from scaling.worker.simulated.device import load


def main() -> None:
    """Simulate and print. A device that cannot be built is a `failed` simulation, as is a program that fails."""
    asked = decode(Simulation, json.load(sys.stdin))
    # What the model and its libraries print is not part of the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        load()
    except BuildError as error:
        found = Simulated(failed=str(error))
    else:
        from scaling.worker.simulated.program import simulate  # noqa: PLC0415  (brings torch's FSDP along)

        found = simulate(asked)
    json.dump(encode(found), answer)
    answer.flush()
    os._exit(0)  # the device's threads may still hold tasks of a program that failed


if __name__ == "__main__":
    main()
