"""Builds the device once, before any rank starts, or says why it cannot be."""

import pytest

from scaling_simulator import build


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    lacking = build.missing()
    if lacking is not None:
        pytest.skip(lacking)
    build.built()
