"""The asynchronous side of twinbus: the same names as in `twinbus`, for programs with an event loop."""

from __future__ import annotations

from twinbus.client._async.client import PairedServiceBusClient, pair_namespaces
from twinbus.client._async.receiver import PairedReceiver, RecordedReceiver, record_receives
from twinbus.pairing.sending._async.sender import PairedSender

__all__ = [
    "PairedReceiver",
    "PairedSender",
    "PairedServiceBusClient",
    "RecordedReceiver",
    "pair_namespaces",
    "record_receives",
]
