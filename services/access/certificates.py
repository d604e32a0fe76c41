"""Client certificates: which subject is who. That the authority signed them, TLS has checked."""

from __future__ import annotations

from collections.abc import Iterable

from services.access.tables import CertificateTable
from services.auth import Admission
from swe_ai_fleet.domain.access import Principal

_MAX_BYTES = 64 * 1024
_Subject = tuple[str, str]


class Certificates:
    """Finds whom a certificate names.

    Names of the subjectAltName count before the common name, which RFC 6125 has long retired.
    """

    def __init__(self, entries: Iterable[CertificateTable]) -> None:
        self._holders: dict[_Subject, Principal] = {}
        for entry in entries:
            principal = Principal(tenant=entry.tenant, name=entry.name, roles=entry.roles)
            subject = next(
                (kind, value)
                for kind, value in (("uri", entry.san_uri), ("dns", entry.san_dns), ("cn", entry.common_name))
                if value
            )
            self._holders[subject] = principal

    def __len__(self) -> int:
        return len(self._holders)

    def find(self, pem: bytes, now: float) -> Admission | None:
        """Whom it names; None where nobody is known by it, or it is over (a connection may be older than that)."""
        subjects, expires = _subjects(pem)
        if expires <= now:
            return None
        found = next((self._holders[one] for one in subjects if one in self._holders), None)
        return None if found is None else Admission(principal=found, expires=expires)


def _subjects(pem: bytes) -> tuple[list[_Subject], float]:
    """What a certificate is called, the strongest names first, and when it ends."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if not pem or len(pem) > _MAX_BYTES:
        return [], 0.0
    try:
        read = x509.load_pem_x509_certificate(pem)
        found: list[_Subject] = []
        try:
            names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found += [("uri", one) for one in names.get_values_for_type(x509.UniformResourceIdentifier)]
            found += [("dns", one) for one in names.get_values_for_type(x509.DNSName)]
        except x509.ExtensionNotFound:
            pass
        found += [("cn", str(one.value)) for one in read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return found, read.not_valid_after_utc.timestamp()
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return [], 0.0
