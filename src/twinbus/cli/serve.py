"""`twinbus serve`: one or more namespaces on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from twinbus.broker.certificate import CertificateError
from twinbus.broker.config import Config, ConfigError, NamespaceConfig, load_config, parse_namespace
from twinbus.broker.emulator import emulator_config
from twinbus.broker.namespace import Namespace
from twinbus.broker.profile import ProfileName
from twinbus.broker.server import Server
from twinbus.broker.store import Durability, StoreError

from .event_loop import run_loop, spare_the_collector
from .exits import BAD_USAGE, fail
from .failing import reason_with_place
from .logs import LEVELS, FormatOption, LogFormat, configure_logs

DEFAULT_NAMESPACE = "contoso=5672"
DEFAULT_DATA = Path(".twinbus")


def serve(
    emulator_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.JSON]", help="With --emulator: the configuration file of Microsoft's emulator."
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME=PORT",
            help="A namespace and its port; port 0 picks a free one. May be given again."
            f" Without any: {DEFAULT_NAMESPACE}.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help=f"Folder for messages, keys and the certificate. Without it: {DEFAULT_DATA}.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of namespaces and entities.")] = None,
    emulator: Annotated[
        bool,
        typer.Option(
            "--emulator",
            help="Stand in for Microsoft's emulator: its ports 5672 and 5300, its connection string, its CONFIG.JSON.",
        ),
    ] = False,
    administration_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="One more port, for the administration of the first namespace.")
    ] = None,
    profile: Annotated[
        ProfileName | None, typer.Option(help="azure demands of clients what the real service demands.")
    ] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(help="full survives power loss, normal a killed process, memory nothing. Without it: full."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Without it: 127.0.0.1.")] = None,
    control_port: Annotated[int, typer.Option(min=0, max=65535, help="Port for faults and counts; 0: a free one.")] = 0,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of a certificate for TLS. Without it one is made in the data folder.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file of its key, if that is another file.")] = None,
    deliver_pings: Annotated[
        bool, typer.Option("--deliver-pings", help="Hand pings to receivers, as a service that no longer hides them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready, for programs.")] = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "warning",
) -> None:
    """Serve Service-Bus-compatible namespaces on this machine until Ctrl-C.

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
    given = {name: value for name, value in changes.items() if value is not None}
    settings = replace(
        settings,
        namespaces=tuple(replace(one, **given) for one in settings.namespaces),  # type: ignore[arg-type]
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
    except (OSError, StoreError, CertificateError) as error:
        fail("twinbus serve", reason_with_place(error) if isinstance(error, OSError) else str(error))


def _refuse(message: str) -> NoReturn:
    fail("twinbus serve", message, BAD_USAGE)


def _base(file: Path | None, emulator: bool, emulator_file: Path | None) -> Config:
    """What the configuration file says, ours or that of Microsoft's emulator."""
    if emulator and file is not None:
        _refuse("--emulator reads CONFIG.JSON, and not --config")
    if emulator_file is not None and not emulator:
        _refuse("CONFIG.JSON needs --emulator; a TOML file is named with --config")
    if emulator:
        return emulator_config(emulator_file)
    return load_config(file) if file is not None else Config(namespaces=())


def _settings(names: list[str] | None, config: Config, administration_port: int | None) -> Config:
    """The configuration's namespaces, with those of the command line added or their ports changed."""
    by_name = {one.name.lower(): one for one in config.namespaces}
    wanted = names if names or by_name else [DEFAULT_NAMESPACE]
    given: set[str] = set()
    for text in wanted or ():
        parsed: NamespaceConfig = parse_namespace(text)
        key = parsed.name.lower()
        if key in given:
            raise ConfigError("--namespace", "", "", f"{parsed.name} is given twice")
        given.add(key)
        known = by_name.get(key)
        by_name[key] = replace(known, port=parsed.port) if known else parsed
    if administration_port is not None:
        first = next(iter(by_name))
        by_name[first] = replace(by_name[first], administration_port=administration_port)
    ports = [port for one in by_name.values() for port in (one.port, one.administration_port) if port]
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
        spare_the_collector()
        print(_as_json(server) if as_json else _as_text(server, config), flush=True)
        await stop.wait()
    if not as_json:
        print("stopped", flush=True)


def _as_json(server: Server) -> str:
    ca_file = server.certificate_file
    return json.dumps(
        {
            "namespaces": {
                name: {"port": one.port, "connection_string": one.connection_string, **_administration(one)}
                for name, one in server.namespaces.items()
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
    for name, one in server.namespaces.items():
        ports = f"port {one.port}"
        if one.administration_port != one.port:
            ports += f"  administration {one.administration_port}"
        kept = "nothing is kept" if one.store.durability is Durability.MEMORY else one.store.durability.value
        lines += [
            f"{name}  {ports}  profile {one.profile.name.value}  durability {kept}",
            f"  {one.connection_string}",
        ]
    lines.append(f"faults and counts: {server.control.url}  token {server.control.token}")
    if server.certificate_file is not None:
        lines.append(f"over TLS, clients must trust {server.certificate_file}")
        lines.append(f"  administration client: connection_verify={str(server.certificate_file)!r}")
    lines += ["in another terminal:", *(f"  {line}" for line in _exports(server))]
    lines.append("ready; Ctrl-C stops")
    return "\n".join(lines)


def _exports(server: Server) -> list[str]:
    """Lines for a shell: what the other commands and the examples read, the first namespace being the primary."""
    names = list(server.namespaces)
    variables = dict(zip(names, ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY"), strict=False))
    lines = []
    for name in names:
        variable = variables.get(name, re.sub(r"\W", "_", name.upper()) + "_CONNECTION_STRING")
        lines.append(f"export {variable}={shlex.quote(server.namespaces[name].connection_string)}")
    # Its host is an address, which does not say its name, and while it is down nobody can ask it.
    return [*lines, f"export TWINBUS_PRIMARY_NAME={names[0]}"] if len(names) > 1 else lines
