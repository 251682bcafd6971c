"""SPEC 5: long polls and the four stages of a diverted message, as the recorder and the namespaces count them."""

from __future__ import annotations

import itertools

from tests.spec.house import House, backlog_path, eventually, text

from twinbus import SendAvailabilityOptions, SyphonOptions
from twinbus.ledger.recorder import OperationKind, Outcome, Stage

POLL = 0.4


def test_ten_queues_polled_for_fifteen_minutes_are_40_receives_an_hour_960_a_day_and_28800_in_30_days() -> None:
    options = SendAvailabilityOptions()
    a_queue_an_hour = 3600 / options.syphon.poll
    an_hour = options.backlog_queue_count * a_queue_an_hour
    assert (options.syphon.poll, an_hour, 24 * an_hour, 30 * 24 * an_hour) == (900, 40, 960, 28_800)


def test_each_poll_of_each_queue_is_one_receive_in_the_recorder_and_at_the_namespace(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    syphon = SyphonOptions(poll=POLL, retry_min=0.1)
    with house.client(kind, backlog_queue_count=3, enable_syphon=True, syphon=syphon) as client:
        paths = [backlog_path(client.name, index) for index in range(3)]
        eventually(lambda: min(client.rows(OperationKind.POLL, path) for path in paths) >= 2)
        with house.client(kind, primary_name=client.name, backlog_queue_count=3) as other:
            other.fail_over(queue.path)
            for _ in range(3):
                other.get_queue_sender(queue.path).send_messages([text(), text()])
        eventually(lambda: queue.activity.received == 6)
        enough = {path: client.rows(OperationKind.POLL, path) + 2 for path in paths}
        eventually(lambda: all(client.rows(OperationKind.POLL, path) >= least for path, least in enough.items()))
    for index, path in enumerate(paths):
        polls = [
            row for row in client.recorder.operations if row.operation is OperationKind.POLL and row.entity == path
        ]
        assert len(polls) == house.backlog(client, index).activity.polls
        assert {(row.stage, row.outcome, row.count) for row in polls} == {(Stage.POLL, Outcome.EMPTY, 0)}
        gaps = [(later.ts - earlier.ts) / 1e6 for earlier, later in itertools.pairwise(polls)]
        assert min(gaps) > POLL * 0.95
    assert sum(house.backlog(client, index).activity.delivered for index in range(3)) == 6


def test_a_diverted_message_passes_four_stages_that_are_counted_as_the_namespaces_count_them(
    house: House, kind: str
) -> None:
    queue = house.queue(house.a_name())
    name = house.a_name("contoso")
    with (
        house.client(kind, primary_name=name, backlog_queue_count=1, enable_syphon=True) as client,
        house.client(kind, primary_name=name, backlog_queue_count=1) as other,
    ):
        other.fail_over(queue.path)
        other.get_queue_sender(queue.path).send_messages(text())
        with client.get_queue_receiver(queue.path) as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=20)
            receiver.complete_message(message)
        backlog = house.backlog(client)
        eventually(lambda: client.rows(OperationKind.COMPLETE) == 2)
        both = client.stages() + other.stages()
        stages = {stage: found for stage, found in both.items() if stage[0] is not Stage.MANAGE}
        assert stages == {
            (Stage.BACKLOG_SEND, OperationKind.SEND): backlog.activity.received,
            (Stage.BACKLOG_RECEIVE, OperationKind.RECEIVE): backlog.activity.delivered,
            (Stage.BACKLOG_RECEIVE, OperationKind.COMPLETE): backlog.activity.completed,
            (Stage.PRIMARY_SEND, OperationKind.SEND): queue.activity.received,
            (Stage.PRIMARY_RECEIVE, OperationKind.RECEIVE): queue.activity.delivered,
            (Stage.PRIMARY_RECEIVE, OperationKind.COMPLETE): queue.activity.completed,
        }
        assert set(stages.values()) == {1}


def test_a_message_that_was_not_diverted_is_charged_as_without_pairing(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind) as client:
        client.get_queue_sender(queue.path).send_messages(text())
        stages = {stage: found for stage, found in client.stages().items() if stage[0] is not Stage.MANAGE}
        assert stages == {(Stage.DIRECT, OperationKind.SEND): queue.activity.received}
