"""Write the expected documents anew and print what moved: python tests/golden/regenerate.py [NAME...]."""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from golden import cases  # noqa: E402  after the path is set


def main(names: list[str]) -> None:
    for name in names or cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                now = cases.document(cases.CASES[name](Path(folder)))
            except FileNotFoundError as error:
                print(f"{name}: left as it is: {error}")
                continue
        file = cases.expected_file(name)
        lines = cases.differences(cases.expected(name), now) if file.exists() else ["made"]
        if lines:
            print(f"{name}: {len(lines)} values differ", *lines[:40], sep="\n  ")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(lzma.compress(json.dumps(now, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    main(sys.argv[1:])
