"""A fleet's own certificate authority, and the certificates it signs for its servers' names.

Files and directories of an installation are accessible to their owner only.
"""

from __future__ import annotations

import datetime
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from swe_ai_fleet.domain.command import address_of
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.private_files import write_private

PRIVATE_DIRECTORY = 0o700
LOOPBACK = ("localhost", "127.0.0.1", "::1")
NAMESPACE = "fleet"
AUTHORITY_DAYS = 3_650
CERTIFICATE_DAYS = 397
"""Some clients refuse certificates with a longer lifetime."""
_SKEW = datetime.timedelta(hours=1)


def make_directory(path: Path) -> None:
    """Make a directory that only its owner can read; an existing one stays as it is."""
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)


def update_private(path: Path, text: str) -> bool:
    """Write a file that only its owner can read; False where it has this text already."""
    with suppress(FileNotFoundError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return False
    write_private(path, text)
    return True


def others_may_read(path: Path) -> bool:
    """Whether other users than the owner may read a file."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def server_names(server: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """The names in a server's certificate: this machine's, its Kubernetes service's, and the given hosts."""
    service = f"fleet-{server}"
    names = [*LOOPBACK, *hosts, service, *_in_cluster(service)]
    if server == "nats":
        # The servers of a NATS cluster call each other by their Pods' names.
        names += [f"*.{name}" for name in _in_cluster("fleet-nats-peers")]
    return tuple(dict.fromkeys(names))


def _in_cluster(service: str) -> tuple[str, ...]:
    own = f"{service}.{NAMESPACE}"
    return own, f"{own}.svc", f"{own}.svc.cluster.local"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str


def new_authority(name: str) -> KeyPair:
    """An authority that signs certificates of servers and clients and no other authorities (ECDSA, P-256)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    return KeyPair(certificate=_pem(built.sign(key, hashes.SHA256())), key=_key_pem(key))


def new_certificate(
    authority: KeyPair, name: str, *, hosts: Sequence[str] = (), server: bool = False, client: bool = False
) -> KeyPair:
    """A certificate signed by an authority.

    Args:
        name: Its common name; for clients also an alternative DNS name, which identifies them.
        hosts: The DNS names and addresses of a server.

    Raises:
        InvalidRequest: A host is neither a name nor an address.
    """
    signer = serialization.load_pem_private_key(authority.key.encode(), password=None)
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] if server else []
    purposes += [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
    names = [_alternative(host) for host in (hosts if server else (name,))]
    built = (
        _builder(subject, issuer.subject, key.public_key(), CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return KeyPair(certificate=_pem(built.sign(signer, hashes.SHA256())), key=_key_pem(key))


def days_left(certificate: str) -> float:
    """Days until a certificate (PEM) expires, negative afterwards. Raises ValueError for other text."""
    until = x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    return (until - datetime.datetime.now(datetime.UTC)) / datetime.timedelta(days=1)


def signed_by(certificate: str, authority: str) -> bool:
    """Whether an authority signed a certificate (both PEM); False where one of them is malformed."""
    from cryptography.exceptions import InvalidSignature

    try:
        x509.load_pem_x509_certificate(certificate.encode()).verify_directly_issued_by(
            x509.load_pem_x509_certificate(authority.encode())
        )
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def host_names(certificate: str) -> tuple[str, ...]:
    """The DNS names and addresses in a certificate (PEM). Raises ValueError for other text."""
    loaded = x509.load_pem_x509_certificate(certificate.encode())
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return (*names.get_values_for_type(x509.DNSName), *addresses)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    if (address := address_of(host.strip("[]"))) is not None:
        return x509.IPAddress(address)
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InvalidRequest(
            f"{host!r} is not a host name", field="hosts", hint="DNS names and addresses, without ports"
        ) from None


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
