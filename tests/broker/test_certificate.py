"""The TLS certificate of an embedded namespace: made once, kept, renewed, and accepted by real clients."""

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

from twinbus.broker.certificate import (
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
    """Answers one request after another over TLS on a loopback port, until the block ends."""
    context = server_context(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                # A client that does not trust us hangs up in the middle of the handshake.
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
    # Python 3.13 turns this on by default: a certificate that older versions let pass must not fail there.
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


# Against real clients


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "broker.test", "10.1.2.3"])
def test_a_client_that_trusts_the_authority_connects_under_every_name(tmp_path: Path, name: str) -> None:
    certificate = ensure_certificate(tmp_path, ["broker.test", "10.1.2.3"])
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, name) == "TLSv1.3"


def test_requests_connects_with_the_authority_as_its_bundle(tmp_path: Path) -> None:
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


def test_a_name_the_certificate_does_not_have_is_refused_by_clients(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    with https_server(certificate) as port, pytest.raises(ssl.SSLCertVerificationError):
        handshake(port, certificate.ca_file, "elsewhere.test")


def test_tls_1_2_is_spoken_and_nothing_older(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    assert server_context(certificate).minimum_version is ssl.TLSVersion.TLSv1_2
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost", newest=ssl.TLSVersion.TLSv1_2) == "TLSv1.2"


# What is kept


def test_later_starts_use_the_same_certificate(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, ["broker.test"], lambda: NOW)
    before = contents(tmp_path)
    assert ensure_certificate(tmp_path, ["BROKER.test."], lambda: NOW + 300 * DAY) == first
    assert ensure_certificate(tmp_path, [], lambda: NOW) == first
    assert contents(tmp_path) == before


def test_the_folder_is_made_with_what_is_above_it(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path / "data" / "tls")
    assert certificate.ca_file.parent == tmp_path / "data" / "tls"


@posix_only
def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    certificate = ensure_certificate(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in (certificate.key_file, folder / CA_KEY_FILE):
        assert b"PRIVATE KEY" in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" not in certificate.ca_file.read_bytes()


@posix_only
def test_loose_modes_are_tightened_at_the_next_start(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path)
    tmp_path.chmod(0o755)
    certificate.key_file.chmod(0o644)
    (tmp_path / CA_KEY_FILE).chmod(0o644)
    ensure_certificate(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert certificate.key_file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / CA_KEY_FILE).stat().st_mode & 0o777 == 0o600


# What is renewed


@pytest.mark.parametrize("days", [336, 366, 1000])
def test_a_certificate_near_its_end_is_remade_by_the_same_authority(tmp_path: Path, days: int) -> None:
    first = ensure_certificate(tmp_path, ["broker.test"], lambda: NOW)
    before = contents(tmp_path)
    renewed = ensure_certificate(tmp_path, [], lambda: NOW + days * DAY)
    after = contents(tmp_path)
    assert renewed.not_after == first.not_after + days * DAY == NOW + (365 + days) * DAY
    assert after[CA_FILE] == before[CA_FILE]
    assert after[SERVER_FILE] != before[SERVER_FILE]
    assert "broker.test" in names_in(renewed)


def test_an_authority_that_would_not_outlive_its_certificate_is_remade(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, [], lambda: NOW)
    before = contents(tmp_path)
    ensure_certificate(tmp_path, [], lambda: NOW + 9.5 * 365 * DAY)
    assert contents(tmp_path)[CA_FILE] != before[CA_FILE]


def test_a_certificate_from_the_future_is_remade(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, [], lambda: NOW + 1000 * DAY)
    assert ensure_certificate(tmp_path, [], lambda: NOW).not_after == NOW + 365 * DAY


def test_a_new_name_is_added_and_the_others_stay(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, ["one.test"])
    authority = (tmp_path / CA_FILE).read_bytes()
    certificate = ensure_certificate(tmp_path, ["two.test"])
    assert names_in(certificate) == {"localhost", "127.0.0.1", "::1", "one.test", "two.test"}
    assert (tmp_path / CA_FILE).read_bytes() == authority


def test_old_names_go_when_there_would_be_too_many(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, ["old.test"])
    wanted = [f"host-{number}.test" for number in range(MAX_NAMES - 3)]
    assert "old.test" not in names_in(ensure_certificate(tmp_path, wanted))


# Names


def test_names_are_read_as_hosts_or_addresses() -> None:
    names = subject_names(["Bücher.test", "[fe80::1]", "0.0.0.0", "::", "my_container"])
    assert names - subject_names([]) == {
        x509.DNSName("xn--bcher-kva.test"),
        x509.DNSName("my_container"),
        x509.IPAddress(ipaddress.ip_address("fe80::1")),
    }


@pytest.mark.parametrize(
    "name", ["", ".", "a b", "a..b", "host:5672", "sb://host", "x" * 64, "a." * 200 + "b", "a\nb", "\udc80"]
)
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
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
def test_a_damaged_server_certificate_is_remade_by_the_same_authority(tmp_path: Path, how: str) -> None:
    certificate = ensure_certificate(tmp_path)
    authority = certificate.ca_file.read_bytes()
    certificate.cert_file.write_bytes(damaged(certificate.cert_file.read_bytes(), how))
    certificate = ensure_certificate(tmp_path)
    assert certificate.ca_file.read_bytes() == authority
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost")


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_authority_is_remade_with_a_warning(
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
def test_the_file_that_clients_trust_is_written_again_unchanged(tmp_path: Path, content: bytes | None) -> None:
    certificate = ensure_certificate(tmp_path)
    before = certificate.ca_file.read_bytes()
    certificate.ca_file.unlink()
    if content is not None:
        certificate.ca_file.write_bytes(content)
    assert ensure_certificate(tmp_path) == certificate
    assert certificate.ca_file.read_bytes() == before


def test_files_that_do_not_belong_together_are_not_served(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path / "one")
    other = ensure_certificate(tmp_path / "other")
    certificate.cert_file.write_bytes(other.cert_file.read_bytes())
    certificate = ensure_certificate(tmp_path / "one")
    with https_server(certificate) as port:
        assert handshake(port, certificate.ca_file, "localhost")


def test_a_server_certificate_does_not_pass_for_an_authority(tmp_path: Path) -> None:
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


def test_what_a_killed_process_left_behind_is_removed(tmp_path: Path) -> None:
    ensure_certificate(tmp_path)
    leftover = tmp_path / f".{SERVER_FILE}.abcd1234.tmp"
    leftover.write_bytes(b"half a certifi")
    ensure_certificate(tmp_path)
    assert not leftover.exists()
    assert {path.name for path in tmp_path.iterdir()} == {CA_FILE, CA_KEY_FILE, SERVER_FILE, ".lock"}


def test_a_failed_write_leaves_the_old_files_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_certificate(tmp_path)
    before = contents(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CertificateError, match="No space left"):
        ensure_certificate(tmp_path, ["new.test"])
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_folder_that_is_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("not a folder")
    with pytest.raises(CertificateError, match="tls"):
        ensure_certificate(tmp_path / "tls")


def test_a_folder_in_place_of_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / SERVER_FILE).mkdir()
    with pytest.raises(CertificateError, match=r"server\.pem"):
        ensure_certificate(tmp_path)


# Somebody else's certificate


def test_a_certificate_and_key_in_two_files_are_served_too(tmp_path: Path) -> None:
    made = ensure_certificate(tmp_path / "made")
    content = made.cert_file.read_bytes()
    key = serialization.load_pem_private_key(content, password=None)
    (tmp_path / "cert.pem").write_bytes(content[content.index(b"-----BEGIN CERTIFICATE") :])
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    own = replace(made, cert_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem")
    with https_server(own) as port:
        assert handshake(port, own.ca_file, "localhost")


def test_a_certificate_that_cannot_be_loaded_is_an_error_that_names_it(tmp_path: Path) -> None:
    made = ensure_certificate(tmp_path)
    with pytest.raises(CertificateError, match=r"missing\.pem"):
        server_context(replace(made, cert_file=tmp_path / "missing.pem"))
    with pytest.raises(CertificateError, match=r"ca\.pem"):
        server_context(replace(made, cert_file=made.ca_file))


# At the same time


def test_threads_that_start_together_end_up_with_one_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ensure_certificate(folder), range(16)))
    assert len(set(made)) == 1
    server_context(made[0])


ENSURE_IN_CHILD = """
import sys
from pathlib import Path
from twinbus.broker.certificate import ensure_certificate, server_context
sys.stdin.read()
certificate = ensure_certificate(Path(sys.argv[1]), [sys.argv[2]])
server_context(certificate)
print(certificate.ca_file.read_text())
"""


def test_processes_that_start_together_end_up_with_one_authority(tmp_path: Path) -> None:
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
            # They wait for the end of their input, so that all have started before the first goes on.
            assert child.stdin is not None
            child.stdin.close()
        printed = [child.stdout.read() for child in children if child.stdout is not None]
        assert [child.wait(60) for child in children] == [0, 0, 0, 0]
    assert len(set(printed)) == 1
    assert set(names) < names_in(ensure_certificate(folder))


def test_a_lock_that_is_never_given_back_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(folder: Path) -> None:
        held.set()
        assert release.wait(30)

    monkeypatch.setattr("twinbus.broker.certificate._LOCK_SECONDS", 0.0)
    monkeypatch.setattr("twinbus.broker.certificate._remove_leftovers", hold)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ensure_certificate, tmp_path)
        assert held.wait(30)
        with pytest.raises(CertificateError, match=r"another process has held .*\.lock"):
            ensure_certificate(tmp_path)
        release.set()
        assert first.result(30)
