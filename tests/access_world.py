"""Tenants, tokens and keys for tests: an access file, and everything that somebody may show who is in it or is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID


def new_token() -> str:
    """One as `fleet access` makes them."""
    return f"fleet_{secrets.token_urlsafe(36)}"


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


ISSUER = "https://idp.example.org/realms/dev"
AUDIENCE = "fleet"
ROLES = ("viewer", "submitter", "approver", "admin", "service")


_TENANTS = """
[tenants.acme]
approval = "plan"
quota = { agents = 4, queue_share = 0.5 }
[tenants.umbrella]
"""
_ISSUER = f"""
[[jwt]]
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
jwks = "keys.json"
algorithms = ["ES256", "RS256"]
tenant_claim = "org.tenant"
roles_claim = "realm.roles"
leeway_seconds = 10
"""


def token_entry(name: str, token: str, *, tenant: str, role: str, expires: str = "") -> str:
    """A table of the access file."""
    entry = f'[[tokens]]\nname = "{name}"\ntenant = "{tenant}"\nroles = ["{role}"]\nsha256 = "{token_digest(token)}"\n'
    return entry + (f"expires = {expires}\n" if expires else "")


def jwk(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    """A public key as a set of keys has it."""
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "use": "sig", "alg": algorithm}


def claims(**more: Any) -> dict[str, Any]:
    """Those of a token that is let in; None takes one out."""
    now = int(time.time())
    told = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now - 5, "exp": now + 600}
    told |= {"org": {"tenant": "acme"}, "realm": {"roles": ["submitter"]}, **more}
    return {name: value for name, value in told.items() if value is not None}


def unsigned(told: dict[str, Any], header: dict[str, Any]) -> str:
    return ".".join(_part(json.dumps(one).encode()) for one in (header, told))


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(kw_only=True)
class AccessWorld:
    """A directory with an access file and the keys of one issuer.

    Static tokens are called `<tenant>-<role>`; there are the tenants acme and umbrella.
    """

    folder: Path
    signer: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    rsa_signer: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    stranger: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    expired: str = field(default_factory=new_token)

    def __post_init__(self) -> None:
        keys = [jwk(self.signer, "ec-1", "ES256"), jwk(self.rsa_signer, "rsa-1", "RS256")]
        (self.folder / "keys.json").write_text(json.dumps({"keys": keys}))
        self.tokens = {f"{tenant}-{role}": new_token() for tenant in ("acme", "umbrella") for role in ROLES}
        self.write()

    @property
    def path(self) -> Path:
        return self.folder / "access.toml"

    def write(self, *, without: str = "", more: str = "") -> None:
        """Write the file, without one of the tokens."""
        tokens = [
            token_entry(name, token, tenant=name.partition("-")[0], role=name.partition("-")[2])
            for name, token in self.tokens.items()
            if name != without
        ]
        gone = token_entry("gone", self.expired, tenant="acme", role="admin", expires="2026-01-01T00:00:00Z")
        draft = self.folder / ".access.toml"
        draft.write_text("\n".join((_TENANTS, *tokens, gone, _ISSUER, more)))
        draft.replace(self.path)

    def jwt(self, **more: Any) -> str:
        """A token that the issuer signed."""
        return jwt.encode(claims(**more), self.signer, "ES256", headers={"kid": "ec-1"})

    def strangers(self) -> dict[str, str]:
        """Tokens that nobody must be let in with, by what is wrong with them."""
        now = int(time.time())
        good = self.jwt()
        pem = self.rsa_signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        confused = unsigned(claims(), {"alg": "HS256", "typ": "JWT", "kid": "rsa-1"})
        told, _, signature = good.rpartition(".")
        admin = unsigned(claims(realm={"roles": ["admin"]}), {"alg": "ES256", "kid": "ec-1"})
        embedded = {"kid": "ec-1", "jwk": jwk(self.stranger, "ec-1", "ES256"), "jku": "https://evil.example/keys"}
        return {
            "wrong token": new_token(),
            "a digest instead of a token": token_digest(self.tokens["acme-admin"]),
            "expired token": self.expired,
            "half a token": self.tokens["acme-admin"][:-1],
            "expired JWT": self.jwt(exp=now - 60),
            "JWT of the future": self.jwt(nbf=now + 600),
            "JWT issued in the future": self.jwt(iat=now + 600),
            "JWT for somebody else": self.jwt(aud="another service"),
            "JWT of another issuer": self.jwt(iss="https://evil.example"),
            "JWT without an end": self.jwt(exp=None),
            "JWT without an audience": self.jwt(aud=None),
            "JWT without a name": self.jwt(sub=None),
            "JWT without a tenant": self.jwt(org={}),
            "alg none": unsigned(claims(), {"alg": "none", "kid": "ec-1"}) + ".",
            "alg None": unsigned(claims(), {"alg": "None"}) + ".",
            "HS256 with the public key": f"{confused}.{_part(hmac.digest(pem, confused.encode(), 'sha256'))}",
            "a stranger's key": jwt.encode(claims(), self.stranger, "ES256", headers={"kid": "ec-1"}),
            "a key of its own": jwt.encode(claims(), self.stranger, "ES256", headers=embedded),
            "an unknown key": jwt.encode(claims(), self.stranger, "ES256", headers={"kid": "ec-9"}),
            "the RSA key's id": jwt.encode(claims(), self.signer, "ES256", headers={"kid": "rsa-1"}),
            "no signature": f"{told}.",
            "another's signature": f"{admin}.{signature}",
            "no JSON": "a.b.c",
            "dots": "..",
        }


@dataclass(frozen=True, kw_only=True)
class Authority:
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    name: str = "Test authority"

    @property
    def pem(self) -> bytes:
        """Its own certificate."""
        return self._signed(self.name, self.key.public_key(), (), authority=True)

    def issue(self, common_name: str, *names: x509.GeneralName, days: int = 1) -> tuple[bytes, bytes]:
        """A certificate and its key, both in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self._signed(common_name, key.public_key(), names, days=days), secret

    def _signed(
        self,
        common_name: str,
        key: ec.EllipticCurvePublicKey,
        names: Sequence[x509.GeneralName],
        *,
        days: int = 1,
        authority: bool = False,
    ) -> bytes:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        now = datetime.now(UTC)
        draft = (
            x509.CertificateBuilder()
            .subject_name(named(common_name))
            .issuer_name(named(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if authority:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            draft = draft.add_extension(usage, critical=True)
        if names:
            draft = draft.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return draft.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)
