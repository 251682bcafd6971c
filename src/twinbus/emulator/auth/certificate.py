"""Generates and renews the TLS certificate of an embedded namespace.

It is made at the first start and kept in the data folder, signed by a local certificate authority. Clients trust the
authority's file, so the server's certificate can be renewed or get another host name without changes at the clients.
A file is made again only if it is damaged or about to expire. `load_certificate` uses a certificate made elsewhere.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..storage.filelock import try_lock

Clock = Callable[[], float]
Name = x509.DNSName | x509.IPAddress

CA_FILE = "ca.pem"
CA_KEY_FILE = "ca-key.pem"
SERVER_FILE = "server.pem"

MAX_NAMES = 100

_CA_LIFETIME = timedelta(days=3650)
_SERVER_LIFETIME = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=30)
# So that a client whose clock is behind does not find the certificate "not yet valid".
_BACKDATE = timedelta(days=1)
_MAX_FILE_BYTES = 65_536
_LOCK_SECONDS = 30.0
_ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")

_log = logging.getLogger(__name__)


class CertificateError(Exception):
    """The certificate cannot be generated, stored or loaded. The message names the file."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a server's certificate. `ca_file` is the authority that clients must trust, if known.

    `cert_file` and `key_file` may be one file. `not_after` is in seconds since the epoch.
    """

    ca_file: Path | None
    cert_file: Path
    key_file: Path
    not_after: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> bytes:
        """Key and certificate in one file, so that a rename replaces both at once or neither."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return key + self.certificate.public_bytes(serialization.Encoding.PEM)

    def is_valid_at(self, moment: datetime) -> bool:
        return self.certificate.not_valid_before_utc <= moment < self.certificate.not_valid_after_utc


def ensure_certificate(folder: Path, names: Sequence[str] = (), clock: Clock = time.time) -> Certificate:
    """The certificate in `folder`, generated or renewed if needed. May wait for another process doing the same.

    It is valid for localhost, 127.0.0.1, ::1 and `names` (host names or addresses), and keeps the names it already
    had. Call it again to renew: in its last 30 days it is replaced.

    Raises:
        ValueError: a name is neither a host name nor an address, or there are more than 100.
        CertificateError: the folder cannot be used.
    """
    required_names = subject_names(names)
    now = datetime.fromtimestamp(clock(), UTC)
    try:
        _prepare(folder)
        with _locked(folder / ".lock"):
            _remove_leftovers(folder)
            authority = _ensure_authority(folder, now)
            server = _ensure_server(folder, authority, required_names, now)
    except OSError as error:
        raise CertificateError(f"cannot store a certificate in {folder}: {error}") from error
    expires_at = server.certificate.not_valid_after_utc.timestamp()
    return Certificate(folder / CA_FILE, folder / SERVER_FILE, folder / SERVER_FILE, expires_at)


def load_certificate(cert_file: Path, key_file: Path | None = None) -> Certificate:
    """A certificate from PEM files that were made elsewhere; without `key_file` the key is in `cert_file`.

    Raises:
        CertificateError: a file cannot be read, or holds no certificate.
    """
    try:
        content = cert_file.read_bytes()
        expires_at = x509.load_pem_x509_certificate(content).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read a certificate from {cert_file}: {error}") from error
    return Certificate(None, cert_file, key_file or cert_file, expires_at)


def subject_names(names: Iterable[str]) -> frozenset[Name]:
    """The subject names of a certificate for `names` and the loopback addresses.

    Raises:
        ValueError: a name is neither a host name nor an address, or there are more than 100.
    """
    result: set[Name] = set()
    for name in (*_ALWAYS_NAMED, *names):
        subject_name = _read_name(name)
        if subject_name is not None:
            result.add(subject_name)
    if len(result) > MAX_NAMES:
        included = ", ".join(_ALWAYS_NAMED)
        raise ValueError(f"names must be at most {MAX_NAMES}, including {included}; got {len(result)}")
    return frozenset(result)


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """A server context for TLS 1.2 or later with this certificate.

    Raises:
        CertificateError: its files are missing or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # With a password, even an empty one, OpenSSL does not prompt for it on the terminal.
        context.load_cert_chain(certificate.cert_file, certificate.key_file, password="")
    except OSError as error:
        raise CertificateError(f"cannot load the certificate {certificate.cert_file}: {error}") from error
    return context


def _ensure_authority(folder: Path, now: datetime) -> _Pair:
    stored = _load(folder / CA_KEY_FILE)
    # An authority must outlive what it signs.
    if (
        stored is not None
        and _is_authority(stored)
        and stored.is_valid_at(now)
        and stored.is_valid_at(now + _SERVER_LIFETIME)
    ):
        authority = stored
    else:
        if (folder / CA_KEY_FILE).exists():
            _log.warning(
                "the certificate authority in %s is damaged or expires too soon: clients must trust the new %s",
                folder,
                folder / CA_FILE,
            )
        authority = _make_authority(now)
        _write(folder / CA_KEY_FILE, authority.pem(), 0o600)
    public = authority.certificate.public_bytes(serialization.Encoding.PEM)
    if _read(folder / CA_FILE) != public:
        _write(folder / CA_FILE, public, 0o644)
    return authority


def _ensure_server(folder: Path, authority: _Pair, required: frozenset[Name], now: datetime) -> _Pair:
    stored = _load(folder / SERVER_FILE)
    stored_names: frozenset[Name] = frozenset()
    if stored is not None and _issued_by(stored.certificate, authority.certificate):
        stored_names = _names_of(stored.certificate)
        if required <= stored_names and stored.is_valid_at(now) and stored.is_valid_at(now + _RENEW_BEFORE):
            return stored
    # Two servers may share a folder under different names: if each dropped the other's names, both would replace the
    # certificate at every start.
    names = required | stored_names if len(required | stored_names) <= MAX_NAMES else required
    server = _make_server(authority, names, now)
    _write(folder / SERVER_FILE, server.pem(), 0o600)
    return server


def _make_authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # The random number tells authorities apart in a trust store that looks them up by name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"twinbus local authority {secrets.token_hex(4)}")])
    builder = _builder(name, name, key.public_key(), key.public_key(), now, _CA_LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def _make_server(authority: _Pair, names: frozenset[Name], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "twinbus embedded namespace")])
    issuer = authority.certificate.subject
    builder = _builder(subject, issuer, key.public_key(), authority.key.public_key(), now, _SERVER_LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    alternative = x509.SubjectAlternativeName(sorted(names, key=lambda name: (type(name).__name__, str(name.value))))
    builder = builder.add_extension(alternative, critical=False)
    return _Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _read_name(name: str) -> Name | None:
    bare = name.strip().strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        address = None
    if address is not None:
        # Servers listen on 0.0.0.0, but clients do not connect to it by that address.
        return None if address.is_unspecified else x509.IPAddress(address)
    try:
        host = bare.encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    if not 1 <= len(host) <= 253 or not all(
        part.replace("-", "").replace("_", "").isalnum() for part in host.split(".")
    ):
        raise ValueError(f"names must be host names or addresses, got {name[:100]!r}")
    return x509.DNSName(host)


def _names_of(certificate: x509.Certificate) -> frozenset[Name]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    return frozenset(name for name in extension.value if isinstance(name, x509.DNSName | x509.IPAddress))


def _is_authority(pair: _Pair) -> bool:
    try:
        constraints = pair.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        return False
    return constraints.value.ca and _issued_by(pair.certificate, pair.certificate)


def _issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load(path: Path) -> _Pair | None:
    """The key and certificate in a file; None if the file is missing, damaged or holds no matching pair."""
    content = _read(path)
    if content is None:
        return None
    try:
        key = serialization.load_pem_private_key(content, password=None)
        certificate = x509.load_pem_x509_certificate(content)
        is_pair = certificate.public_key() == key.public_key()
        # OpenSSL, which serves the file, is stricter: to it a zero byte ends a line.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password="")
    except (ValueError, TypeError, UnsupportedAlgorithm, ssl.SSLError):
        is_pair = False
    if not is_pair or not isinstance(key, ec.EllipticCurvePrivateKey):
        _log.warning("%s is damaged and will be replaced", path)
        return None
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return _Pair(certificate, key)


def _read(path: Path) -> bytes | None:
    """The first 64 KiB of a file, or None if it does not exist. A damaged file may have any size."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        return None


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically: a reader sees the old or the new content, also after a crash."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _prepare(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def _remove_leftovers(folder: Path) -> None:
    # Called under the lock only, so any temporary file is left from a process that died.
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file until the block ends, against other processes and threads."""
    with path.open("ab") as file:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not try_lock(file):
            if time.monotonic() >= deadline:
                raise CertificateError(
                    f"the lock {path} is held by another process; gave up after {_LOCK_SECONDS:.0f} seconds"
                )
            time.sleep(0.02)
        # Closing the file releases the lock.
        yield
