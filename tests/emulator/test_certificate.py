"""The TLS certificate of an embedded namespace: generated, stored, renewed, accepted by real clients."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from twinbus.emulator.auth.certificate import (
    CA_FILE,
    CA_KEY_FILE,
    MAX_NAMES,
    SERVER_FILE,
    Certificate,
    CertificateError,
    ensure_certificate,
    server_context,
    subject_names,
)

DAY = 86_400.0
NOW = 1_700_000_000.0

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="file modes are a POSIX matter")


def names_in(certificate: Certificate) -> set[str]:
    loaded = x509.load_pem_x509_certificate(certificate.cert_file.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".pem"}


@contextlib.contextmanager
def https_server(certificate: Certificate) -> Iterator[int]:
    """Serves HTTP requests over TLS on a loopback port until the block ends."""
    context = server_context(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                # A client that does not trust the certificate aborts the handshake.
                with raw, contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as secure:
                    secure.recv(65536)
                    secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            assert not thread.is_alive()


def handshake(port: int, trusted: Path, name: str, *, newest: ssl.TLSVersion | None = None) -> str | None:
    context = ssl.create_default_context(cafile=str(trusted))
    # The default of Python 3.13: certificates must pass the strict checks too.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if newest is not None:
        context.maximum_version = newest
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=name) as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert secure.recv(1024).startswith(b"HTTP/1.1 200")
        return secure.version()


# Real clients


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "broker.test", "10.1.2.3"])
def test_client_that_trusts_the_authority_connects_by_every_name(tmp_path: Path, name: str) -> None:
    certificate = ensure_certificate(tmp_path, ["broker.test", "10.1.2.3"])
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, name) == "TLSv1.3"


def test_requests_library_connects_with_the_authority_as_bundle(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    with https_server(certificate) as port:
        for host in ("localhost", "127.0.0.1"):
            answer = requests.get(f"https://{host}:{port}/", verify=str(certificate.ca_file), timeout=10)
            assert answer.text == "ok"


def test_a_client_that_does_not_trust_the_authority_refuses(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path / "one")
    other = ensure_certificate(tmp_path / "other")
    with https_server(certificate) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(port, other.ca_file, "localhost")
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(f"https://localhost:{port}/", timeout=10)


def test_clients_refuse_a_name_the_certificate_lacks(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    with https_server(certificate) as port, pytest.raises(ssl.SSLCertVerificationError):
        handshake(port, certificate.ca_file, "elsewhere.test")


def test_tls_1_2_is_spoken_and_nothing_older(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    assert server_context(certificate).minimum_version is ssl.TLSVersion.TLSv1_2
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost", newest=ssl.TLSVersion.TLSv1_2) == "TLSv1.2"


# Storage


def test_later_starts_use_the_same_certificate(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, ["broker.test"], lambda: NOW)
    before = contents(tmp_path)
    assert ensure_certificate(tmp_path, ["BROKER.test."], lambda: NOW + 300 * DAY) == first
    assert ensure_certificate(tmp_path, [], lambda: NOW) == first
    assert contents(tmp_path) == before


def test_folder_and_its_parents_are_created(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path / "data" / "tls")
    assert certificate.ca_file.parent == tmp_path / "data" / "tls"


@posix_only
def test_key_files_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    certificate = ensure_certificate(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in (certificate.key_file, folder / CA_KEY_FILE):
        assert b"PRIVATE KEY" in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" not in certificate.ca_file.read_bytes()


@posix_only
def test_loose_file_modes_are_tightened_at_the_next_start(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    tmp_path.chmod(0o755)
    certificate.key_file.chmod(0o644)
    (tmp_path / CA_KEY_FILE).chmod(0o644)
    ensure_certificate(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert certificate.key_file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / CA_KEY_FILE).stat().st_mode & 0o777 == 0o600


# Renewal


@pytest.mark.parametrize("days", [336, 366, 1000])
def test_certificate_near_expiry_is_renewed_by_the_same_authority(tmp_path: Path, days: int) -> None:
    first = ensure_certificate(tmp_path, ["broker.test"], lambda: NOW)
    before = contents(tmp_path)
    renewed = ensure_certificate(tmp_path, [], lambda: NOW + days * DAY)
    after = contents(tmp_path)
    assert renewed.not_after == first.not_after + days * DAY == NOW + (365 + days) * DAY
    assert after[CA_FILE] == before[CA_FILE]
    assert after[SERVER_FILE] != before[SERVER_FILE]
    assert "broker.test" in names_in(renewed)


def test_authority_that_would_expire_before_its_certificate_is_replaced(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, [], lambda: NOW)
    before = contents(tmp_path)
    ensure_certificate(tmp_path, [], lambda: NOW + 9.5 * 365 * DAY)
    assert contents(tmp_path)[CA_FILE] != before[CA_FILE]


def test_certificate_from_the_future_is_replaced(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, [], lambda: NOW + 1000 * DAY)
    assert ensure_certificate(tmp_path, [], lambda: NOW).not_after == NOW + 365 * DAY


def test_a_new_name_is_added_and_the_others_stay(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, ["one.test"])
    authority = (tmp_path / CA_FILE).read_bytes()
    certificate = ensure_certificate(tmp_path, ["two.test"])
    assert names_in(certificate) == {"localhost", "127.0.0.1", "::1", "one.test", "two.test"}
    assert (tmp_path / CA_FILE).read_bytes() == authority


def test_old_names_are_dropped_at_the_limit(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, ["old.test"])
    wanted = [f"host-{number}.test" for number in range(MAX_NAMES - 3)]
    assert "old.test" not in names_in(ensure_certificate(tmp_path, wanted))


# Names


def test_names_are_parsed_as_hosts_or_addresses() -> None:
    names = subject_names(["Bücher.test", "[fe80::1]", "0.0.0.0", "::", "my_container"])
    assert names - subject_names([]) == {
        x509.DNSName("xn--bcher-kva.test"),
        x509.DNSName("my_container"),
        x509.IPAddress(ipaddress.ip_address("fe80::1")),
    }


@pytest.mark.parametrize(
    "name", ["", ".", "a b", "a..b", "host:5672", "sb://host", "x" * 64, "a." * 200 + "b", "a\nb", "\udc80"]
)
def test_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names must be host names or addresses"):
        ensure_certificate(tmp_path / "tls", [name])
    assert not (tmp_path / "tls").exists()


def test_too_many_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 100"):
        ensure_certificate(tmp_path, [f"host-{number}.test" for number in range(MAX_NAMES)])


# Damage


def damaged(content: bytes, how: str) -> bytes:
    return {
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "key only": content[: content.index(b"-----BEGIN CERTIFICATE")],
        "huge": b"-" * 10_000_000,
    }[how]


DAMAGES = ["empty", "half", "zeros", "key only", "huge"]


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_server_certificate_is_replaced_by_the_same_authority(tmp_path: Path, how: str) -> None:
    certificate = ensure_certificate(tmp_path)
    authority = certificate.ca_file.read_bytes()
    certificate.cert_file.write_bytes(damaged(certificate.cert_file.read_bytes(), how))
    certificate = ensure_certificate(tmp_path)
    assert certificate.ca_file.read_bytes() == authority
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost")


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_authority_is_replaced_with_a_warning(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_certificate(tmp_path)
    key_file = tmp_path / CA_KEY_FILE
    key_file.write_bytes(damaged(key_file.read_bytes(), how))
    certificate = ensure_certificate(tmp_path)
    assert "clients must trust the new" in caplog.text
    assert "PRIVATE KEY" not in caplog.text
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost")


@pytest.mark.parametrize("content", [None, b"", b"half a certifi"])
def test_missing_or_damaged_trust_file_is_restored(tmp_path: Path, content: bytes | None) -> None:
    certificate = ensure_certificate(tmp_path)
    before = certificate.ca_file.read_bytes()
    certificate.ca_file.unlink()
    if content is not None:
        certificate.ca_file.write_bytes(content)
    assert ensure_certificate(tmp_path) == certificate
    assert certificate.ca_file.read_bytes() == before


def test_mismatched_key_and_certificate_are_replaced(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path / "one")
    other = ensure_certificate(tmp_path / "other")
    certificate.cert_file.write_bytes(other.cert_file.read_bytes())
    certificate = ensure_certificate(tmp_path / "one")
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost")


def test_server_certificate_is_not_accepted_as_authority(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    (tmp_path / CA_KEY_FILE).write_bytes(certificate.cert_file.read_bytes())
    certificate = ensure_certificate(tmp_path)
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(position=st.integers(0, 600), byte=st.integers(0, 255))
@example(position=240, byte=0)
def test_a_changed_byte_never_breaks_the_next_start(tmp_path: Path, position: int, byte: int) -> None:
    certificate = ensure_certificate(tmp_path)
    for file in (certificate.cert_file, tmp_path / CA_KEY_FILE):
        content = bytearray(file.read_bytes())
        content[position % len(content)] = byte
        file.write_bytes(content)
    server_context(ensure_certificate(tmp_path))


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    ensure_certificate(tmp_path)
    leftover = tmp_path / f".{SERVER_FILE}.abcd1234.tmp"
    leftover.write_bytes(b"half a certifi")
    ensure_certificate(tmp_path)
    assert not leftover.exists()
    assert {path.name for path in tmp_path.iterdir()} == {CA_FILE, CA_KEY_FILE, SERVER_FILE, ".lock"}


def test_failed_write_keeps_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_certificate(tmp_path)
    before = contents(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CertificateError, match="No space left"):
        ensure_certificate(tmp_path, ["new.test"])
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob(".*.tmp"))


def test_file_in_place_of_the_folder_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("not a folder")
    with pytest.raises(CertificateError, match="tls"):
        ensure_certificate(tmp_path / "tls")


def test_folder_in_place_of_a_file_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / SERVER_FILE).mkdir()
    with pytest.raises(CertificateError, match=r"server\.pem"):
        ensure_certificate(tmp_path)


# A certificate made elsewhere


def test_a_certificate_and_key_in_two_files_are_served_too(tmp_path: Path) -> None:
    generated = ensure_certificate(tmp_path / "made")
    content = generated.cert_file.read_bytes()
    key = serialization.load_pem_private_key(content, password=None)
    (tmp_path / "cert.pem").write_bytes(content[content.index(b"-----BEGIN CERTIFICATE") :])
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    own = replace(generated, cert_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem")
    with https_server(own) as port:
        assert handshake(port, own.ca_file, "localhost")


def test_unloadable_certificate_is_an_error_naming_it(tmp_path: Path) -> None:
    generated = ensure_certificate(tmp_path)
    with pytest.raises(CertificateError, match=r"missing\.pem"):
        server_context(replace(generated, cert_file=tmp_path / "missing.pem"))
    with pytest.raises(CertificateError, match=r"ca\.pem"):
        server_context(replace(generated, cert_file=generated.ca_file))


# Concurrency


def test_concurrent_threads_create_one_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    with ThreadPoolExecutor(8) as pool:
        generated = list(pool.map(lambda _: ensure_certificate(folder), range(16)))
    assert len(set(generated)) == 1
    server_context(generated[0])


ENSURE_IN_CHILD = """
import sys
from pathlib import Path
from twinbus.emulator.auth.certificate import ensure_certificate, server_context
sys.stdin.read()
certificate = ensure_certificate(Path(sys.argv[1]), [sys.argv[2]])
server_context(certificate)
print(certificate.ca_file.read_text())
"""


def test_concurrent_processes_create_one_authority(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    names = [f"host-{number}.test" for number in range(4)]
    command = [sys.executable, "-c", ENSURE_IN_CHILD, str(folder)]
    with contextlib.ExitStack() as stack:
        children = []
        for name in names:
            child = subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(child)
            stack.callback(child.kill)
            children.append(child)
        for child in children:
            # They wait for end of input, so that all start before the first continues.
            assert child.stdin is not None
            child.stdin.close()
        printed = [child.stdout.read() for child in children if child.stdout is not None]
        assert [child.wait(60) for child in children] == [0, 0, 0, 0]
    assert len(set(printed)) == 1
    assert set(names) < names_in(ensure_certificate(folder))


def test_lock_that_is_never_released_raises_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(folder: Path) -> None:
        held.set()
        assert release.wait(30)

    monkeypatch.setattr("twinbus.emulator.auth.certificate._LOCK_SECONDS", 0.0)
    monkeypatch.setattr("twinbus.emulator.auth.certificate._remove_leftovers", hold)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ensure_certificate, tmp_path)
        assert held.wait(30)
        with pytest.raises(CertificateError, match=r"the lock .*\.lock is held by another process"):
            ensure_certificate(tmp_path)
        release.set()
        assert first.result(30)
