"""The public names are a promise: adding or removing one must be meant."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import ModuleType

import pytest

import twinbus
import twinbus.aio
import twinbus.emulator
import twinbus.testing
from twinbus.pairing import events
from twinbus.pairing import pairing_errors as errors

PUBLIC_NAMES = [
    "ApplicationErrors",
    "AttemptTimeoutError",
    "BacklogConfigurationError",
    "BacklogNotReadyError",
    "BacklogQueueRestored",
    "BacklogQueueRetired",
    "BacklogQueueStatus",
    "BacklogReady",
    "BacklogUnavailableError",
    "BacklogWarning",
    "Condition",
    "Diverted",
    "EntityFailedOverError",
    "EntityNotFoundError",
    "EntityState",
    "EntityStatus",
    "EnvelopeTooLargeError",
    "Event",
    "FailedOver",
    "FailoverPolicy",
    "Faulted",
    "ForkedClientError",
    "HungCallsError",
    "LedgerAvailable",
    "LedgerUnavailable",
    "ListedQueue",
    "Moved",
    "Namespace",
    "NamespacesLookSwapped",
    "NamespacesSwappedError",
    "NoFreeLinkError",
    "OversizeWarning",
    "PairedClientFaultedError",
    "PairedReceiver",
    "PairedSender",
    "PairedServiceBusClient",
    "PairingStatus",
    "PingFailed",
    "PingSent",
    "PumpStopped",
    "Receipt",
    "RecordedReceiver",
    "Recovered",
    "Route",
    "ScheduledInBacklogError",
    "SendAvailabilityOptions",
    "StarvedWarning",
    "Suspected",
    "SuspicionCleared",
    "SyphonOptions",
    "TwinbusError",
    "__version__",
    "pair_namespaces",
    "record_receives",
]
ASYNCHRONOUS_NAMES = [
    "PairedReceiver",
    "PairedSender",
    "PairedServiceBusClient",
    "RecordedReceiver",
    "pair_namespaces",
    "record_receives",
]

NAMESPACE_NAMES = [
    "AZURE",
    "DEFAULT",
    "ActiveFault",
    "BearerToken",
    "Config",
    "ConfigError",
    "Durability",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultPoint",
    "Namespace",
    "NamespaceConfig",
    "NamespaceThread",
    "PolicyConfig",
    "Profile",
    "QueueConfig",
    "QueueDescription",
    "Right",
    "StoreError",
    "SubscriptionDescription",
    "TopicConfig",
    "TopicDescription",
    "load_config",
    "sign",
]
TESTING_NAMES = [
    "AZURE",
    "DEFAULT",
    "ActiveFault",
    "EmbeddedNamespace",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultPoint",
    "Profile",
    "TwinNamespaces",
    "twin_namespaces",
]


def test_the_package_exports_exactly_the_promised_names() -> None:
    assert sorted(twinbus.__all__) == sorted(PUBLIC_NAMES)


def test_the_asynchronous_side_exports_exactly_the_promised_names() -> None:
    assert sorted(twinbus.aio.__all__) == sorted(ASYNCHRONOUS_NAMES)


@pytest.mark.parametrize(("module", "names"), [(twinbus.emulator, NAMESPACE_NAMES), (twinbus.testing, TESTING_NAMES)])
def test_the_embedded_namespace_exports_exactly_the_promised_names(module: ModuleType, names: list[str]) -> None:
    assert sorted(module.__all__) == sorted(names)
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_promised_name_is_there(name: str) -> None:
    assert getattr(twinbus, name) is getattr(twinbus, name)
    assert name in dir(twinbus)


def test_every_error_and_event_is_public() -> None:
    for kind, module in ((errors.TwinbusError, errors), (events.Event, events)):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, kind):
                assert getattr(twinbus, name) is value


def test_no_submodule_shadows_a_public_name() -> None:
    program = """
import importlib, pkgutil, types, twinbus
for module in pkgutil.walk_packages(twinbus.__path__, "twinbus."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in ("twinbus", "twinbus.aio", "twinbus.emulator", "twinbus.ledger", "twinbus.spark", "twinbus.testing"):
    package = importlib.import_module(name)
    for public in getattr(package, "__all__", ()):
        if isinstance(getattr(package, public), types.ModuleType):
            print(f"{name}.{public}")
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert finished.stdout == ""


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PairedClient'"):
        twinbus.PairedClient  # noqa: B018


def test_importing_the_package_loads_nothing_of_the_sdk() -> None:
    program = "import sys, twinbus; print([name for name in sys.modules if name.split('.')[0] in ('azure', 'aiohttp')])"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == "[]\n"


def test_no_name_is_public_without_being_exported() -> None:
    names = {name for name, value in vars(twinbus).items() if not isinstance(value, ModuleType)}
    # `from __future__ import annotations` leaves its own name behind.
    assert {name for name in names if not name.startswith("_")} - {"annotations"} <= set(twinbus.__all__)


def test_the_installed_version_is_the_one_the_package_names() -> None:
    assert importlib.metadata.version("twinbus") == twinbus.__version__


def test_the_command_prints_its_version() -> None:
    command = [sys.executable, "-m", "twinbus", "--version"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == f"twinbus {twinbus.__version__}\n"
