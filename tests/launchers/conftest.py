from __future__ import annotations

import pytest

from scaling.records.paths import RunFolder


@pytest.fixture
def launch(tmp_path):
    """An empty folder of a launch."""
    folder = RunFolder(tmp_path).launch(0)
    folder.path.mkdir(parents=True)
    return folder
