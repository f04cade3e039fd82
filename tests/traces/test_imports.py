"""Reading another tool's traces starts fast and takes little memory, so it imports no table library."""

import subprocess
import sys

READERS = ("scaling.traces.profiler.read", "scaling.traces.profiler.summary")


def test_reading_traces_imports_neither_polars_nor_scipy():
    code = f"import sys, {', '.join(READERS)}; print(*{{'polars', 'scipy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
