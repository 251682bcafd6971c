"""Tests that the matrix detects the defects of the first release, planted in the sending process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.proof.planted import BUGS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: The cell that shows each defect, and the expected problem.
CAUGHT_BY = {
    "waiting_for_a_link_is_evidence": ("callers-64-impatient/primary", "false alarm"),
    "a_cancelled_call_is_evidence": ("callers-8-cancelled/primary", "false alarm"),
    "a_cancelled_call_retires_its_queue": ("callers-8-cancelled/secondary", "false alarm"),
    "a_cancelled_call_costs_the_links_of_others": ("callers-8-cancelled/primary", "calls without a timeout sent again"),
    "a_disabled_queue_stays_in_the_rotation": ("queue-disabled/secondary", "MessagingEntityDisabledError"),
    "a_deleted_queue_stays_in_the_rotation": ("queue-deleted/secondary", "MessagingEntityNotFoundError"),
    "a_forbidden_queue_stays_in_the_rotation": ("queue-forbidden/secondary", "ServiceBusAuthorizationError"),
    "a_busy_session_sticks_to_the_backlog": ("refuse/primary", "not back on the primary"),
    "the_timeout_of_an_impatient_caller_is_conclusive": ("callers-8-impatient/primary", "false alarm"),
    "no_probe": ("black-hole-last-calls/primary", "no failover"),
    "starvation_counts_as_an_outage": ("callers-blocked/primary", "false alarm"),
}

PLANTED = """
import sys
from tests.proof.planted import BUGS
from proof.matrix import rounds
from proof.__main__ import app

name, cell = sys.argv[1:]
rounds.RECOVERY_SECONDS = 30.0  # do not wait the full time for a stuck session
with next(bug for bug in BUGS if bug.name == name).plant():
    app(["matrix", "--only", cell])
"""


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_defect_fails_a_cell(name: str) -> None:
    place, text = CAUGHT_BY[name]
    work = "session" if name == "a_busy_session_sticks_to_the_backlog" else "single"
    # In a separate process, so that the planted bug does not stay.
    command = [sys.executable, "-c", PLANTED, name, f"default/{place}/{work}/*"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert text in run.stderr


def test_defects_are_planted_bugs_of_the_simulation() -> None:
    assert set(CAUGHT_BY) <= {bug.name for bug in BUGS}
