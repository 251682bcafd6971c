"""`twinbus serve`: runs embedded namespaces on this machine."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import shlex
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from twinbus.emulator.auth.certificate import CertificateError
from twinbus.emulator.config.microsoft_config import emulator_config
from twinbus.emulator.config.namespace_file import Config, ConfigError, NamespaceConfig, load_config, parse_namespace
from twinbus.emulator.config.profile import ProfileName
from twinbus.emulator.server.namespace import LOOPBACK, Namespace
from twinbus.emulator.server.process import Server
from twinbus.emulator.storage.store import Durability, StoreError

from ..event_loop import run_loop, tune_garbage_collector
from ..exits import BAD_USAGE, fail
from ..failures import describe_os_error
from ..logs import LEVELS, FormatOption, LogFormat, configure_logs

DEFAULT_NAMESPACE = "contoso=5672"
DEFAULT_DATA = Path(".twinbus")


def serve(
    emulator_file: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.JSON]", help="Configuration file of Microsoft's emulator, with --emulator."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME=PORT",
            help=f"A namespace and its port; port 0 picks a free one (repeatable). Default: {DEFAULT_NAMESPACE}.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help=f"Folder for messages, keys and the certificate. Default: {DEFAULT_DATA}.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with namespaces and entities.")] = None,
    emulator: Annotated[
        bool,
        typer.Option(
            "--emulator",
            help="Replace Microsoft's emulator: same ports (5672 and 5300), connection string and CONFIG.JSON.",
        ),
    ] = False,
    administration_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Additional port for the administration API of the first namespace."),
    ] = None,
    profile: Annotated[
        ProfileName | None, typer.Option(help="azure enforces the limits and rules of the real service.")
    ] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(help="full survives power loss, normal a killed process, memory nothing. Default: full."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    control_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for faults and counters; 0 picks a free one.")
    ] = 0,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file with a TLS certificate. Default: one created in the data folder.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate's key, if it is a separate file.")
    ] = None,
    deliver_pings: Annotated[
        bool,
        typer.Option("--deliver-pings", help="Deliver pings to receivers, as if the service no longer dropped them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready, for programs.")] = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "warning",
) -> None:
    """Run Service-Bus-compatible namespaces on this machine until Ctrl-C.

    Example: twinbus serve --namespace contoso=5672 --namespace contoso-standby=5673
    """
    if log_level.lower() not in LEVELS:
        _refuse(f"--log-level must be one of {', '.join(LEVELS)}, not {log_level!r}")
    configure_logs(log_format, log_level)
    try:
        base = _base(config, emulator, emulator_file)
        settings = _settings(namespace, base, administration_port)
    except ConfigError as error:
        _refuse(str(error))
    changes = {"profile": profile, "durability": durability, "deliver_pings": deliver_pings or None}
    overrides = {name: value for name, value in changes.items() if value is not None}
    settings = replace(
        settings,
        namespaces=tuple(replace(each, **overrides) for each in settings.namespaces),  # type: ignore[arg-type]
        data=data or settings.data or DEFAULT_DATA,
        host=host.strip("[]") if host else settings.host,
        certificate=certificate or settings.certificate,
        key=key if certificate else key or settings.key,
    )
    if settings.key is not None and settings.certificate is None:
        _refuse("--key needs --certificate")
    _run(settings, control_port, as_json)


def _run(settings: Config, control_port: int, as_json: bool) -> None:
    try:
        run_loop(_serve(settings, control_port, as_json))
    except ConfigError as error:
        _refuse(str(error))
    except OSError as error:
        hint = _port_hint(settings, control_port) if error.errno == errno.EADDRINUSE else ""
        fail("twinbus serve", describe_os_error(error) + hint)
    except (StoreError, CertificateError) as error:
        fail("twinbus serve", str(error))


def _port_hint(settings: Config, control_port: int) -> str:
    """Name the namespace or option whose port is taken, and say how to get a free one."""
    for namespace in settings.namespaces:
        for port, option in (
            (namespace.port, f"--namespace {namespace.name}=0"),
            (namespace.administration_port, "--administration-port 0"),
        ):
            if port and not _is_free(settings.host or LOOPBACK, port):
                return f"; it is the port of namespace {namespace.name}: {option} picks a free one"
    return "; --control-port 0 picks a free one" if control_port else ""


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _refuse(message: str) -> NoReturn:
    fail("twinbus serve", message, BAD_USAGE)


def _base(file: Path | None, emulator: bool, emulator_file: Path | None) -> Config:
    """Read the configuration file, twinbus's own or that of Microsoft's emulator."""
    if emulator and file is not None:
        _refuse("--emulator reads CONFIG.JSON: leave out --config")
    if emulator_file is not None and not emulator:
        _refuse("CONFIG.JSON needs --emulator; for a TOML file use --config")
    if emulator:
        return emulator_config(emulator_file)
    return load_config(file) if file is not None else Config(namespaces=())


def _settings(names: list[str] | None, config: Config, administration_port: int | None) -> Config:
    """Add the namespaces of the command line to the configuration, or change their ports."""
    by_name = {namespace.name.lower(): namespace for namespace in config.namespaces}
    texts = names if names or by_name else [DEFAULT_NAMESPACE]
    seen: set[str] = set()
    for text in texts or ():
        parsed: NamespaceConfig = parse_namespace(text)
        key = parsed.name.lower()
        if key in seen:
            raise ConfigError("--namespace", "", "", f"{parsed.name} is given twice")
        seen.add(key)
        known = by_name.get(key)
        by_name[key] = replace(known, port=parsed.port) if known else parsed
    if administration_port is not None:
        first = next(iter(by_name))
        by_name[first] = replace(by_name[first], administration_port=administration_port)
    ports = [port for each in by_name.values() for port in (each.port, each.administration_port) if port]
    for port in ports:
        if ports.count(port) > 1:
            raise ConfigError("--namespace", "", "port", f"{port} is given to more than one namespace")
    return replace(config, namespaces=tuple(by_name.values()))


async def _serve(config: Config, control_port: int, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Server(config, control_port=control_port) as server:
        tune_garbage_collector()
        print(_as_json(server) if as_json else _as_text(server, config), flush=True)
        await stop.wait()
    if not as_json:
        print("stopped", flush=True)


def _as_json(server: Server) -> str:
    ca_file = server.certificate_file
    return json.dumps(
        {
            "namespaces": {
                name: {
                    "port": namespace.port,
                    "connection_string": namespace.connection_string,
                    **_administration(namespace),
                }
                for name, namespace in server.namespaces.items()
            },
            "control": {"url": server.control.url, "token": server.control.token},
            "ca_file": str(ca_file) if ca_file is not None else None,
        }
    )


def _administration(namespace: Namespace) -> dict[str, int]:
    port = namespace.administration_port
    return {} if port == namespace.port else {"administration_port": port}


def _as_text(server: Server, config: Config) -> str:
    lines = []
    for name, namespace in server.namespaces.items():
        ports = f"port {namespace.port}"
        if namespace.administration_port != namespace.port:
            ports += f"  administration {namespace.administration_port}"
        durability = namespace.store.durability
        text = "memory (nothing is kept)" if durability is Durability.MEMORY else durability.value
        lines += [
            f"{name}  {ports}  profile {namespace.profile.name.value}  durability {text}",
            f"  {namespace.connection_string}",
        ]
    lines.append(f"faults and counters: {server.control.url}  token {server.control.token}")
    if server.certificate_file is not None:
        lines.append(f"for TLS, clients must trust {server.certificate_file}")
        lines.append(f"  administration client: connection_verify={str(server.certificate_file)!r}")
    lines += ["in another terminal:", *(f"  {line}" for line in _exports(server))]
    lines.append("ready; Ctrl-C stops")
    return "\n".join(lines)


def _exports(server: Server) -> list[str]:
    """Return shell lines for the variables that other commands and the examples read; the first is the primary."""
    names = list(server.namespaces)
    variables = dict(zip(names, ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY"), strict=False))
    lines = []
    for name in names:
        variable = variables.get(name, re.sub(r"\W", "_", name.upper()) + "_CONNECTION_STRING")
        lines.append(f"export {variable}={shlex.quote(server.namespaces[name].connection_string)}")
    # The host is an IP address, which does not tell the name, and a primary that is down cannot be asked.
    return [*lines, f"export TWINBUS_PRIMARY_NAME={names[0]}"] if len(names) > 1 else lines
