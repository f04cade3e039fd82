"""Build the simulated accelerator ahead of ranks: `python -m scaling_simulator`.

Prints the library's file and exits 0, or one line on stderr that says what is missing and exits 2.
"""

import sys

from scaling_simulator.build import BuildError, built


def main() -> int:
    """Build what is not built yet; the exit status."""
    try:
        print(built())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
