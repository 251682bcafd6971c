"""`twinbus serve`: one or more namespaces on this machine."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from twinbus.broker.certificate import CertificateError
from twinbus.broker.config import Config, ConfigError, NamespaceConfig, load_config, parse_namespace
from twinbus.broker.profile import ProfileName
from twinbus.broker.server import Server
from twinbus.broker.store import Durability, StoreError

from .event_loop import run_loop, spare_the_collector
from .exits import BAD_USAGE
from .logs import LEVELS, LogFormat, configure_logs

DEFAULT_NAMESPACE = "contoso=5672"
DEFAULT_DATA = Path(".twinbus")


def serve(
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
    profile: Annotated[
        ProfileName | None, typer.Option(help="azure demands of clients what the real service demands.")
    ] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(help="full survives power loss, normal a killed process, memory nothing. Without it: full."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Without it: 127.0.0.1.")] = None,
    control_port: Annotated[int, typer.Option(min=0, max=65535, help="Port for faults and counts; 0: a free one.")] = 0,
    deliver_pings: Annotated[
        bool, typer.Option("--deliver-pings", help="Hand pings to receivers, as a service that no longer hides them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready, for programs.")] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Logs go to standard error.")] = LogFormat.TEXT,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "warning",
) -> None:
    """Serve Service-Bus-compatible namespaces on this machine until Ctrl-C.

    Example: twinbus serve --namespace contoso=5672 --namespace contoso-standby=5673
    """
    if log_level.lower() not in LEVELS:
        _refuse(f"--log-level must be one of {', '.join(LEVELS)}, not {log_level!r}")
    configure_logs(log_format, log_level)
    try:
        settings = _settings(namespace, config)
    except ConfigError as error:
        _refuse(str(error))
    changes = {"profile": profile, "durability": durability, "deliver_pings": deliver_pings or None}
    given = {name: value for name, value in changes.items() if value is not None}
    settings = replace(
        settings,
        namespaces=tuple(replace(one, **given) for one in settings.namespaces),  # type: ignore[arg-type]
        data=data or settings.data or DEFAULT_DATA,
        host=host or settings.host,
    )
    try:
        run_loop(_serve(settings, control_port, as_json))
    except (OSError, StoreError, CertificateError) as error:
        typer.echo(f"twinbus serve: {error}", err=True)
        raise typer.Exit(1) from None


def _refuse(message: str) -> NoReturn:
    typer.echo(f"twinbus serve: {message}", err=True)
    raise typer.Exit(BAD_USAGE)


def _settings(names: list[str] | None, file: Path | None) -> Config:
    """The configuration file's namespaces, with those of the command line added or their ports changed."""
    config = load_config(file) if file is not None else Config(namespaces=())
    by_name = {one.name: one for one in config.namespaces}
    wanted = names if names or by_name else [DEFAULT_NAMESPACE]
    for text in wanted or ():
        parsed: NamespaceConfig = parse_namespace(text)
        known = by_name.get(parsed.name)
        by_name[parsed.name] = replace(known, port=parsed.port) if known else parsed
    ports = [one.port for one in by_name.values() if one.port]
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
                name: {"port": one.port, "connection_string": one.connection_string}
                for name, one in server.namespaces.items()
            },
            "control": {"url": server.control.url, "token": server.control.token},
            "ca_file": str(ca_file) if ca_file is not None else None,
        }
    )


def _as_text(server: Server, config: Config) -> str:
    lines = []
    for name, one in server.namespaces.items():
        kept = "nothing is kept" if one.store.durability is Durability.MEMORY else one.store.durability.value
        lines += [
            f"{name}  port {one.port}  profile {one.profile.name.value}  durability {kept}",
            f"  {one.connection_string}",
        ]
    lines.append(f"faults and counts: {server.control.url}  token {server.control.token}")
    if server.certificate_file is not None:
        lines.append(f"over TLS, clients must trust {server.certificate_file}")
        lines.append(f"  administration client: connection_verify={str(server.certificate_file)!r}")
    lines.append("ready; Ctrl-C stops")
    return "\n".join(lines)
