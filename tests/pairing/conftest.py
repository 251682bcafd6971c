"""TWINBUS_HIDE_SDK_INTERNALS hides every private SDK attribute that twinbus reads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from twinbus.pairing.sdk import internals

HIDDEN = bool(os.environ.get("TWINBUS_HIDE_SDK_INTERNALS"))


@pytest.fixture(autouse=True, scope="session")
def sdk_internals() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if HIDDEN:
            patch.setattr(internals, "attribute", lambda owner, *names: None)
        yield
