"""A configured certificate that was made elsewhere."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from twinbus.emulator import Namespace, NamespaceConfig
from twinbus.emulator.auth.certificate import CertificateError, load_certificate, server_context
from twinbus.emulator.config.namespace_file import ConfigError, parse_config


def made_elsewhere(folder: Path, password: bytes | None = None) -> tuple[Path, Path]:
    """A self-signed certificate with an RSA key in a separate file."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bus.example")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("bus.example")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    cert_file, key_file = folder / "bus.pem", folder / "bus.key"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return cert_file, key_file


async def test_namespace_serves_the_configured_certificate(tmp_path: Path) -> None:
    cert_file, key_file = made_elsewhere(tmp_path)
    certificate = load_certificate(cert_file, key_file)
    async with Namespace("contoso", certificate=certificate, certificate_folder=tmp_path / "unused") as namespace:
        context = ssl.create_default_context(cafile=str(cert_file))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", namespace.port, ssl=context, server_hostname="bus.example"
        )
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: bus.example\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
    assert not (tmp_path / "unused").exists()


def test_a_configuration_file_names_certificate_and_key_beside_it() -> None:
    content = 'certificate = "bus.pem"\nkey = "bus.key"\n[namespaces.contoso]\nport = 0\nadministration_port = 1\n'
    config = parse_config(content, Path("folder/namespace.toml"))
    assert (config.certificate, config.key) == (Path("folder/bus.pem"), Path("folder/bus.key"))
    assert config.namespaces[0].administration_port == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('key = "bus.key"\n[namespaces.a]\n', "key: must come with a certificate"),
        ("[namespaces.a]\nport = 7\nadministration_port = 7\n", "the same port 7"),
    ],
)
def test_conflicting_settings_in_the_file_are_refused(content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(content, Path("namespace.toml"))


async def test_namespace_listens_on_no_port_if_one_is_taken(tmp_path: Path) -> None:
    async with Namespace("one") as other:
        config = NamespaceConfig("two", port=0, administration_port=other.port)
        refused = Namespace(config, data=tmp_path)
        with pytest.raises(OSError, match=str(other.port)):
            await refused.start()
        async with Namespace(replace(config, administration_port=0), data=tmp_path) as again:
            assert again.administration_port not in (again.port, other.port)


def test_unusable_certificate_is_refused_naming_its_file(tmp_path: Path) -> None:
    cert_file, key_file = made_elsewhere(tmp_path, b"secret")
    with pytest.raises(CertificateError, match=r"bus\.pem"):
        server_context(load_certificate(cert_file, key_file))  # OpenSSL does not prompt for the password
    for wrong in (key_file, tmp_path / "missing.pem"):
        with pytest.raises(CertificateError, match=re.escape(wrong.name)):
            load_certificate(wrong)
