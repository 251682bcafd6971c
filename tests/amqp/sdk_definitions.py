"""The SDK's definitions of each performative, to check ours."""

from __future__ import annotations

from typing import Any, NamedTuple

from azure.servicebus._pyamqp import endpoints, error, outcomes, performatives
from hypothesis import strategies as st
from tests.amqp.amqp_values import Values

from twinbus.amqp.codec import performatives as ours
from twinbus.amqp.codec.types import Array, Described, Symbol, ULong

SDK_KINDS: list[Any] = [
    performatives.OpenFrame,
    performatives.BeginFrame,
    performatives.AttachFrame,
    performatives.FlowFrame,
    performatives.TransferFrame,
    performatives.DispositionFrame,
    performatives.DetachFrame,
    performatives.EndFrame,
    performatives.CloseFrame,
    performatives.SASLMechanism,
    performatives.SASLInit,
    performatives.SASLChallenge,
    performatives.SASLResponse,
    performatives.SASLOutcome,
    outcomes.Received,
    outcomes.Accepted,
    outcomes.Rejected,
    outcomes.Released,
    outcomes.Modified,
    endpoints.Source,
    endpoints.Target,
    error.AMQPError,
]
# Where the SDK's names differ from the specification's, which we use.
_RENAMED = {"idle_timeout": "idle_time_out", "send_settle_mode": "snd_settle_mode", "filters": "filter"}


class Field(NamedTuple):
    name: str
    type: str  # the SDK's name for it: "UINT", "fields", "delivery-state"…
    mandatory: bool
    default: Any
    multiple: bool


class Kind(NamedTuple):
    """Our performative with the SDK's definition of its fields."""

    make: Any
    sdk: Any
    code: int
    fields: list[Field]

    @property
    def name(self) -> str:
        return str(self.make.__name__)


def _kind(sdk: Any) -> Kind:
    fields = [
        Field(
            _RENAMED.get(field.name, field.name),
            getattr(field.type, "value", field.type),
            field.mandatory,
            field.default,
            field.multiple,
        )
        for field in sdk._definition
        if field is not None  # the payload of a transfer
    ]
    return Kind(ours.BY_CODE[sdk._code], sdk, sdk._code, fields)


KINDS = [_kind(sdk) for sdk in SDK_KINDS]
FRAME_KINDS = [kind for kind in KINDS if kind.code <= 0x18 or kind.code >= 0x40]
NESTED_KINDS = [kind for kind in KINDS if kind not in FRAME_KINDS]
BY_NAME = {kind.name: kind for kind in KINDS}

_ASCII = st.text(st.characters(codec="ascii"), min_size=1, max_size=20)
_MAPS = st.dictionaries(_ASCII.map(Symbol), st.booleans() | _ASCII | st.binary(max_size=9), min_size=1, max_size=3)
_BY_TYPE: dict[str, Values] = {
    "BOOL": st.booleans(),
    "UBYTE": st.integers(0, 2**8 - 1),
    "USHORT": st.integers(0, 2**16 - 1),
    "UINT": st.sampled_from([0, 1, 255, 256]) | st.integers(0, 2**32 - 1),
    "ULONG": st.sampled_from([0, 1, 255, 256]) | st.integers(0, 2**64 - 1),
    "BINARY": st.binary(max_size=300),
    "STRING": st.text(st.characters(codec="utf-8"), max_size=300),
    "SYMBOL": _ASCII,
    "MAP": _MAPS,
    "fields": _MAPS,
    "filter-set": _MAPS.map(lambda filters: {key: Described(ULong(5), item) for key, item in filters.items()}),
    "node-properties": _MAPS,
}


def _values(field: Field) -> Values:
    if field.multiple:
        return st.lists(_ASCII.map(Symbol), min_size=1, max_size=3).map(lambda items: Array(0xA3, items))
    nested = {
        "error": ["Error"],
        "delivery-state": ["Received", "Accepted", "Rejected", "Released", "Modified"],
        "source": ["Source"],
        "target": ["Target"],
    }.get(field.type)
    if nested is not None:
        return st.sampled_from(nested).flatmap(lambda name: performatives_of(BY_NAME[name]))
    return _BY_TYPE[field.type]


def performatives_of(kind: Kind) -> Values:
    """Performatives with and without each optional field."""
    fields = [_values(field) if field.mandatory else st.none() | _values(field) for field in kind.fields]
    return st.builds(kind.make, *fields)
