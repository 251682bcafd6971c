"""Attaches links: resolves the address, checks access and bounds, and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.types import Array, Described, Long, Symbol
from twinbus.servicebus.access_rights import Right

from ..auth.refusals import log_refusal
from ..auth.security import missing_right
from ..entities.entity_directory import Node, SubscriptionEntity, TopicEntity
from ..entities.queue import Queue
from ..entities.session_queue import Session, SessionQueue
from ..faults.fault_plan import Fault, FaultPoint
from ..faults.gates import Gate
from .addresses import CBS, COORDINATOR, MANAGEMENT, Address, parse_address, path_of
from .cbs import CbsNode
from .error_conditions import INVALID_FIELD, NOT_ALLOWED, QUOTA_EXCEEDED, UNAUTHORIZED, BrokerError, not_found
from .links import IncomingLink, Link, OutgoingLink
from .management import ManagementNode
from .requests import RequestLink, RequestNode, ResponseLink
from .transactions import CoordinatorLink

if TYPE_CHECKING:
    from .channel import Channel

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
TIMEOUT_PROPERTY = "com.microsoft:timeout"
EPOCH_TICKS = 621_355_968_000_000_000  # .NET counts from the year 1
TICKS_PER_MS = 10_000
MAX_EARLY_FRAMES = 100
MAX_TEXT = 2048
MAX_LINKS = 5000
_ABSENT = object()


def open_link(channel: Channel, attach: amqp.Attach) -> None:
    """Attach a link, or refuse it as the service does: an attach without source or target, then a detach."""
    try:
        _check_bounds(channel, attach)
        address = _address_of(attach)
    except BrokerError as error:
        refuse(channel, attach, error)
        return
    if channel.connection.namespace.faults.active and address.node != CBS:
        pending = channel.links[attach.handle] = PendingLink(channel, attach, address)
        Gate(channel.connection, FaultPoint.ATTACH).perform(address.path, pending.open)
    else:
        _open_or_refuse(channel, attach, address, None)


def _check_bounds(channel: Channel, attach: amqp.Attach) -> None:
    if len(attach.name) > MAX_TEXT:
        raise BrokerError(INVALID_FIELD, f"The link's name must have at most {MAX_TEXT} characters.")
    if sum(len(open_channel.links) for open_channel in channel.connection.channels.values()) >= MAX_LINKS:
        raise BrokerError(QUOTA_EXCEEDED, f"A connection can have {MAX_LINKS} links.")


class PendingLink(Link):
    """A link whose attach a fault holds; it queues the frames that arrive meanwhile."""

    def __init__(self, channel: Channel, attach: amqp.Attach, address: Address) -> None:
        super().__init__(channel, attach)
        self._attach = attach
        self._address = address
        self._early_frames: list[Callable[[Link], None]] = []

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        self._queue(lambda link: link.on_transfer(transfer, payload))

    def on_flow(self, flow: amqp.Flow) -> None:
        self._queue(lambda link: link.on_flow(flow))

    def _queue(self, handle: Callable[[Link], None]) -> None:
        if len(self._early_frames) >= MAX_EARLY_FRAMES:
            raise BrokerError(NOT_ALLOWED, "Too many frames were sent on a link before it was attached.")
        self._early_frames.append(handle)

    def open(self, fault: Fault | None) -> None:
        """Attach now, unless the client has detached."""
        if not self.attached:
            return
        del self.channel.links[self.handle]
        _open_or_refuse(self.channel, self._attach, self._address, fault)
        link = self.channel.links.get(self.handle)
        for handle in self._early_frames:
            if link is not None and link.attached:
                handle(link)


def _open_or_refuse(channel: Channel, attach: amqp.Attach, address: Address, fault: Fault | None) -> None:
    try:
        if fault is not None:
            raise fault.error()
        _open(channel, attach, address)
    except BrokerError as error:
        refuse(channel, attach, error)


def refuse(channel: Channel, attach: amqp.Attach, error: BrokerError) -> None:
    """Answer an attach with a detach that holds the error."""
    channel.links.pop(attach.handle, None)
    _log_refused(channel, attach, error)
    count = 0 if attach.role is amqp.ROLE_RECEIVER else None
    reply = amqp.Attach(attach.name, attach.handle, not attach.role, initial_delivery_count=count)
    channel.connection.send(frame(channel.number, reply))
    channel.connection.send(frame(channel.number, amqp.Detach(attach.handle, True, error.performative())))


def _log_refused(channel: Channel, attach: amqp.Attach, error: BrokerError) -> None:
    connection, is_sender = channel.connection, attach.role is amqp.ROLE_SENDER
    address = getattr(attach.target if is_sender else attach.source, "address", None)
    path = path_of(address[:MAX_TEXT]) if isinstance(address, str) else ""
    what = "a link to" if is_sender else "a link from"
    log_refusal(connection.namespace, what, path, str(error), lambda: connection.rights.policies_for(path))


def _address_of(attach: amqp.Attach) -> Address:
    """The address that a link is for; raises `BrokerError` if there is none."""
    terminus = attach.target if attach.role is amqp.ROLE_SENDER else attach.source
    if isinstance(terminus, amqp.Coordinator) and attach.role is amqp.ROLE_SENDER:
        return Address("", COORDINATOR)
    text = getattr(terminus, "address", None)
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT:
        raise BrokerError(INVALID_FIELD, f"The link's address must be a string of 1 to {MAX_TEXT} characters.")
    return parse_address(text)


def _open(channel: Channel, attach: amqp.Attach, address: Address) -> None:
    connection = channel.connection
    is_sender = attach.role is amqp.ROLE_SENDER
    if address.node == COORDINATOR:
        _open_coordinator(channel, attach)
        return
    if address.node:
        _open_request_link(channel, attach, address)
        return
    node = connection.namespace.entities.resolve(address.path)
    if node is None:
        raise not_found(address.path)
    right = Right.SEND if is_sender else Right.LISTEN
    require(channel, node.path, right)
    node.require_active(right)
    if is_sender:
        _open_incoming(channel, attach, node)
    else:
        _open_outgoing(channel, attach, node)


def require(channel: Channel, path: str, *rights: Right) -> None:
    """Raise `BrokerError` unless the connection's tokens give one of these rights."""
    if not any(channel.connection.rights.allows(path, right) for right in rights):
        raise BrokerError(UNAUTHORIZED, missing_right(rights[0], path).message)


def _open_coordinator(channel: Channel, attach: amqp.Attach) -> None:
    if not channel.connection.rights.is_trusted:
        raise BrokerError(UNAUTHORIZED, "A token must be shown before a link to the transaction coordinator.")
    link = CoordinatorLink(channel, attach)
    channel.links[attach.handle] = link
    target = amqp.Coordinator(Array(0xA3, [Symbol("amqp:local-transactions")]))
    reply(channel, attach, target=target)
    link.grant()


def _open_request_link(channel: Channel, attach: amqp.Attach, address: Address) -> None:
    terminus = attach.target if attach.role is amqp.ROLE_SENDER else attach.source
    text = str(terminus.address)
    namespace = channel.connection.namespace
    node: RequestNode
    if address.node == CBS:
        node = CbsNode(namespace)
    else:
        entity = namespace.entities.resolve(address.path) if address.path else None
        if entity is None:
            raise not_found(address.path or MANAGEMENT)
        if not any(channel.connection.rights.allows_management(entity.path, right) for right in Right):
            raise BrokerError(UNAUTHORIZED, missing_right(Right.LISTEN, entity.path).message)
        node = ManagementNode(namespace, entity)
    link: Link
    if attach.role is amqp.ROLE_SENDER:
        link = RequestLink(channel, attach, node, text)
        channel.links[attach.handle] = link
        reply(channel, attach, max_message_size=node.max_request)
        link.grant()
    else:
        target = getattr(attach.target, "address", None)
        link = ResponseLink(channel, attach, text, target if isinstance(target, str) else None, node.path)
        channel.links[attach.handle] = link
        reply(channel, attach)


def _open_incoming(channel: Channel, attach: amqp.Attach, node: Node) -> None:
    if node.is_dead_letter:
        raise BrokerError(NOT_ALLOWED, "Messages cannot be sent to a dead-letter queue.")
    if not isinstance(node.entity, TopicEntity) and "/subscriptions/" in node.path.lower():
        raise BrokerError(NOT_ALLOWED, "Messages are sent to a topic, not to its subscriptions.")
    properties = attach.properties if isinstance(attach.properties, dict) else {}
    if isinstance(final := properties.get(TRANSFER_DESTINATION), str):
        node = _transfer_destination(channel, final)
    link = IncomingLink(channel, attach, node)
    channel.links[attach.handle] = link
    reply(channel, attach, max_message_size=node.queue.limits.max_message_bytes)
    link.grant()


def _transfer_destination(channel: Channel, address: str) -> Node:
    """The destination of messages sent via another entity, as some clients do in transactions over several entities."""
    node = channel.connection.namespace.entities.resolve(parse_address(address).path)
    if node is None or node.is_dead_letter or isinstance(node.entity, SubscriptionEntity):
        raise not_found(address[:MAX_TEXT])
    require(channel, node.path, Right.SEND)
    node.require_active(Right.SEND)
    return node


def _open_outgoing(channel: Channel, attach: amqp.Attach, node: Node) -> None:
    if isinstance(node.entity, TopicEntity):
        raise BrokerError(NOT_ALLOWED, "Messages are received from a topic's subscriptions, not from the topic.")
    node.require_receivable()
    session_id = _session_filter(attach.source)
    link = OutgoingLink(channel, attach, node)
    queue: Queue = node.queue
    if isinstance(queue, SessionQueue):
        if session_id is _ABSENT:
            raise BrokerError(
                NOT_ALLOWED,
                f"It is not possible for an entity that requires sessions ('{node.path}') to create a"
                " non-sessionful message receiver.",
            )
        channel.links[attach.handle] = link
        _accept_session(channel, attach, link, queue, session_id)
        return
    if session_id is not _ABSENT:
        raise BrokerError(
            NOT_ALLOWED,
            f"A sessionful message receiver cannot be created on '{node.path}', which does not require sessions.",
        )
    channel.links[attach.handle] = link
    queue.attach(link)
    reply(channel, attach)


def _session_filter(source: Any) -> Any:
    """The requested session id, None for the next free session, or `_ABSENT`."""
    filters = source.filter if isinstance(source, amqp.Source) else None
    if not isinstance(filters, dict) or SESSION_FILTER not in filters:
        return _ABSENT
    value = filters[SESSION_FILTER]
    if isinstance(value, Described):
        value = value.value
    if value is not None and not isinstance(value, str):
        raise BrokerError(INVALID_FIELD, "The session filter must be a string or null.")
    return value


def _accept_session(
    channel: Channel, attach: amqp.Attach, link: OutgoingLink, queue: SessionQueue, session_id: str | None
) -> None:
    timeout = channel.connection.profile.accept_session_timeout
    properties = attach.properties if isinstance(attach.properties, dict) else {}
    if isinstance(properties.get(TIMEOUT_PROPERTY), int):
        timeout = properties[TIMEOUT_PROPERTY] / 1000
    queue.attach(link)

    def on_accepted(result: Session | BrokerError) -> None:
        if isinstance(result, BrokerError):
            link.drop()
            refuse(channel, attach, result)
            return
        link.session_id = result.id
        source = attach.source._replace(
            filter={Symbol(SESSION_FILTER): result.id}, default_outcome=None, outcomes=None, capabilities=None
        )
        ticks = EPOCH_TICKS + result.locked_until * TICKS_PER_MS
        reply(channel, attach._replace(source=source), properties={Symbol(LOCKED_UNTIL): Long(ticks)})

    queue.accept(session_id, link, timeout, on_accepted)


def reply(channel: Channel, attach: amqp.Attach, **fields: Any) -> None:
    """Confirm a link by echoing the client's attach from the server's side, changed by `fields`."""
    answer = amqp.Attach(
        name=attach.name,
        handle=attach.handle,
        role=not attach.role,
        snd_settle_mode=attach.snd_settle_mode,
        rcv_settle_mode=attach.rcv_settle_mode,
        source=_terminus(attach.source),
        target=_terminus(attach.target),
        initial_delivery_count=0 if attach.role is amqp.ROLE_RECEIVER else None,
    )
    channel.connection.send(frame(channel.number, answer._replace(**fields)))


def _terminus(terminus: Any) -> Any:
    """The confirmed source or target: the client's exact address and only the session filter."""
    if isinstance(terminus, amqp.Source):
        filters = terminus.filter if isinstance(terminus.filter, dict) else {}
        session = filters.get(SESSION_FILTER)
        applied = {Symbol(SESSION_FILTER): session} if isinstance(session, str) else None
        return amqp.Source(_address(terminus.address), filter=applied)
    if isinstance(terminus, amqp.Target):
        return amqp.Target(_address(terminus.address))
    return terminus if isinstance(terminus, amqp.Coordinator) else None


def _address(address: Any) -> str | None:
    return address if isinstance(address, str) else None
