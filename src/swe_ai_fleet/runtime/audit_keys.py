"""The key that signs the heads of audit chains, and the public keys that verify them (Ed25519, RFC 8032)."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swe_ai_fleet.domain.audit import SignedHead
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.runtime.private_files import keep_private, write_private
from swe_ai_fleet.settings import Settings

_KEY_BYTES = 32
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----[^-]*-----END PUBLIC KEY-----\n?")
_HINT = "an Ed25519 key as PEM (PKCS 8), or its 32 bytes in base64; `openssl genpkey -algorithm ed25519` makes one"
_VARIABLES = ("FLEET_AUDIT_SIGNING_KEY", "FLEET_AUDIT_SIGNING_KEY_FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKeys:
    """The trusted public keys, 32 bytes each, by their ids."""

    keys: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    def fault(self, head: SignedHead, execution_id: str) -> str:
        """Why the signature of an execution's head is not valid; empty where it is."""
        raw = self.keys.get(head.key_id)
        if raw is None:
            return f"it was signed by the key {head.key_id[:64] or '(none)'}, which is not trusted here"
        try:
            Ed25519PublicKey.from_public_bytes(raw).verify(bytes.fromhex(head.signature), head.message(execution_id))
        except (InvalidSignature, ValueError):
            return f"the signature by the key {head.key_id} does not match this head"
        return ""

    @classmethod
    def of(cls, raws: Iterable[bytes]) -> PublicKeys:
        """The keys among `raws`; bytes of another length than 32 are ignored."""
        return cls(keys={key_id(raw): raw for raw in raws if len(raw) == _KEY_BYTES})

    def with_key(self, raw: bytes) -> PublicKeys:
        """These keys and another one, of 32 bytes."""
        return PublicKeys(keys={**self.keys, key_id(raw): raw})

    def pem(self) -> str:
        """All keys as consecutive PEM blocks."""
        return "".join(_pem(raw) for raw in self.keys.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """The private key of an installation; only an orchestrator's process has it."""

    private: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

    def signed(self, head: SignedHead, execution_id: str) -> SignedHead:
        """The head of an execution's chain with its signature and the id of the key."""
        signature = self.private.sign(head.message(execution_id))
        return replace(head, key_id=key_id(self.public), signature=signature.hex())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditKeys:
    """An orchestrator's signing key, and the public keys it publishes: its own and earlier ones."""

    signing: SigningKey
    public: PublicKeys


def key_id(public: bytes) -> str:
    """The id of a public key: the first eight bytes of its SHA-256, hexadecimal."""
    return hashlib.sha256(public).hexdigest()[:16]


def new_key_pem() -> str:
    """A new private key as PEM."""
    return (
        Ed25519PrivateKey.generate()
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


def signing_key(text: str) -> SigningKey:
    """A private key from PEM, or from its 32 bytes in base64. Raises InvalidRequest, which does not quote the text."""
    try:
        if "-----BEGIN" in text:
            key = serialization.load_pem_private_key(text.encode(), password=None)
        else:
            key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(text.strip(), validate=True))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest("this is not an Ed25519 key", field="audit_signing_key", hint=_HINT)
    return SigningKey(private=key)


def public_keys(path: Path, *, setting: str = "audit_public_keys") -> PublicKeys:
    """The public keys in a file of PEM blocks. Raises InvalidRequest naming the setting for one that holds none."""
    try:
        blocks = _PEM.findall(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}", field=setting) from None
    keys = PublicKeys()
    for block in blocks:
        try:
            key = serialization.load_pem_public_key(block.encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidRequest(f"{path} contains a key that is not an Ed25519 public key", field=setting)
        keys = keys.with_key(key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))
    if not keys.keys:
        raise InvalidRequest(
            f"{path} contains no public key", field=setting, hint="a PEM file like those in FLEET_HOME/audit"
        )
    return keys


def open_audit_keys(settings: Settings) -> AuditKeys:
    """The signing key of the settings, or the home's own, made at the first start; blocks for a moment.

    Its public key is added to the home's file of public keys, which keeps those of earlier keys. Raises InvalidRequest
    and PreconditionFailed naming the setting.
    """
    directory = settings.home / "audit"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    own, public_file = directory / "signing-key.pem", directory / "public-keys.pem"
    text = settings.audit_signing_key
    if not text:
        keep_private(own, new_key_pem)
        text = own.read_text(encoding="utf-8")
        if own.stat().st_mode & 0o077:
            raise PreconditionFailed(
                f"{own} can be read by others",
                field="audit_signing_key",
                hint=f"chmod 600 {own}, or remove it for a new one",
            )
    signing = signing_key(text)
    public = public_keys(public_file) if public_file.exists() else PublicKeys()
    if signing.public not in public.keys.values():
        public = public.with_key(signing.public)
        write_private(public_file, public.pem())
    if settings.audit_public_keys is not None:
        configured = public_keys(settings.audit_public_keys)
        public = PublicKeys(keys={**configured.keys, **public.keys})
    return AuditKeys(signing=signing, public=public)


def keyless(settings: Settings) -> Settings:
    """Settings without the private key, also removed from the environment, so that no child process gets it."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
    return settings.model_copy(update={"audit_signing_key": ""})


def _pem(raw: bytes) -> str:
    key = Ed25519PublicKey.from_public_bytes(raw)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
