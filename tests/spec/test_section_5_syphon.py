"""SPEC 5: long polls and the four stages of a diverted message, as recorder and namespaces count them."""

from __future__ import annotations

import itertools

from tests.spec.namespace_pair import NamespacePair, backlog_path, eventually, new_message

from twinbus import SendAvailabilityOptions, SyphonOptions
from twinbus.ledger.recorder import OperationKind, Outcome, Stage

POLL = 0.4


def test_default_polling_costs_28800_receives_in_30_days() -> None:
    options = SendAvailabilityOptions()
    per_hour = options.backlog_queue_count * 3600 / options.syphon.poll
    assert (options.syphon.poll, per_hour, 24 * per_hour, 30 * 24 * per_hour) == (900, 40, 960, 28_800)


def test_each_poll_is_one_receive_in_recorder_and_namespace(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    syphon = SyphonOptions(poll=POLL, retry_min=0.1)
    with namespaces.client(kind, backlog_queue_count=3, enable_syphon=True, syphon=syphon) as client:
        paths = [backlog_path(client.name, index) for index in range(3)]
        eventually(lambda: min(client.rows(OperationKind.POLL, path) for path in paths) >= 2)
        with namespaces.client(kind, primary_name=client.name, backlog_queue_count=3) as other:
            other.fail_over(queue.path)
            for _ in range(3):
                other.get_queue_sender(queue.path).send_messages([new_message(), new_message()])
        eventually(lambda: queue.activity.received == 6)
        targets = {path: client.rows(OperationKind.POLL, path) + 2 for path in paths}
        eventually(lambda: all(client.rows(OperationKind.POLL, path) >= target for path, target in targets.items()))
    for index, path in enumerate(paths):
        polls = [
            row for row in client.recorder.operations if row.operation is OperationKind.POLL and row.entity == path
        ]
        assert len(polls) == namespaces.backlog(client, index).activity.polls
        assert {(row.stage, row.outcome, row.count) for row in polls} == {(Stage.POLL, Outcome.EMPTY, 0)}
        gaps = [(later.ts - earlier.ts) / 1e6 for earlier, later in itertools.pairwise(polls)]
        assert min(gaps) > POLL * 0.95
    assert sum(namespaces.backlog(client, index).activity.delivered for index in range(3)) == 6


def test_diverted_message_passes_four_stages_with_equal_counts(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    name = namespaces.new_name("contoso")
    with (
        namespaces.client(kind, primary_name=name, backlog_queue_count=1, enable_syphon=True) as client,
        namespaces.client(kind, primary_name=name, backlog_queue_count=1) as other,
    ):
        other.fail_over(queue.path)
        other.get_queue_sender(queue.path).send_messages(new_message())
        with client.get_queue_receiver(queue.path) as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=20)
            receiver.complete_message(message)
        backlog = namespaces.backlog(client)
        eventually(lambda: client.rows(OperationKind.COMPLETE) == 2)
        both = client.stages() + other.stages()
        stages = {stage: count for stage, count in both.items() if stage[0] is not Stage.MANAGE}
        assert stages == {
            (Stage.BACKLOG_SEND, OperationKind.SEND): backlog.activity.received,
            (Stage.BACKLOG_RECEIVE, OperationKind.RECEIVE): backlog.activity.delivered,
            (Stage.BACKLOG_RECEIVE, OperationKind.COMPLETE): backlog.activity.completed,
            (Stage.PRIMARY_SEND, OperationKind.SEND): queue.activity.received,
            (Stage.PRIMARY_RECEIVE, OperationKind.RECEIVE): queue.activity.delivered,
            (Stage.PRIMARY_RECEIVE, OperationKind.COMPLETE): queue.activity.completed,
        }
        assert set(stages.values()) == {1}


def test_direct_message_costs_the_same_as_without_pairing(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind) as client:
        client.get_queue_sender(queue.path).send_messages(new_message())
        stages = {stage: count for stage, count in client.stages().items() if stage[0] is not Stage.MANAGE}
        assert stages == {(Stage.DIRECT, OperationKind.SEND): queue.activity.received}
