"""Images of a registry: manifests and layers over HTTP, each checked against its digest.

Only registries in the operator's settings are used. A registry may redirect to other hosts for layers and tokens; those
are only reached at public addresses over TLS, and credentials are only sent to the hosts configured for them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import httpx2

from swe_ai_fleet.adapters.git_workspace.image_sources import (
    FIELD,
    LARGEST_DOCUMENT,
    FoundImage,
    ImageReference,
    Layer,
    blob_name,
    chosen,
    contents,
    document,
    missing,
)
from swe_ai_fleet.adapters.git_workspace.image_unpacking import CHUNK
from swe_ai_fleet.adapters.git_workspace.locations import Credential
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.json_values import mapping, string
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.http_transport import GuardedTransport, HttpPolicy

_MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        *("oci.image.index.v1", "oci.image.manifest.v1"),
        *("docker.distribution.manifest.list.v2", "docker.distribution.manifest.v2"),
    )
)
_HOSTS = {"docker.io": "registry-1.docker.io"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_GLOB = re.compile(r"[*?\[]")
_INSECURE = "http://"
_MOST_REDIRECTS = 5
_SECONDS = 60.0
_LAYER_SECONDS = 1800.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
RegistryCredentials = Callable[[str, str, str], Awaitable[Credential | None]]
"""The credential of (tenant, reference, URL); see `mounted_credentials`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRules:
    """The allowed registries.

    `allowed` are globs for `host/repository`; a host alone means all of its repositories. A host without wildcards
    may be at a private address; with the prefix `http://` it is used without TLS.
    """

    allowed: tuple[str, ...] = ()
    credentials: RegistryCredentials | None = None
    tls: ssl.SSLContext | None = None

    def check(self, reference: ImageReference) -> None:
        """Raises InvalidRequest for an image of another registry."""
        for entry in self._entries:
            pattern = entry if "/" in entry else f"{entry}/*"
            # The pattern's host must match the registry alone, so that its `*` does not match into the path.
            if fnmatchcase(reference.path, pattern) and fnmatchcase(reference.registry, entry.partition("/")[0]):
                return
        raise InvalidRequest(
            f"images of {reference.path[:128]} are not accepted",
            field=FIELD,
            hint=f"the operator names registries in FLEET_IMAGE_REGISTRIES: {', '.join(self.allowed) or 'none'}",
        )

    def url(self, registry: str) -> str:
        """The URL of a registry, without a path."""
        insecure = {e.removeprefix(_INSECURE).partition("/")[0] for e in self.allowed if e.startswith(_INSECURE)}
        return f"{'http' if registry in insecure else 'https'}://{_HOSTS.get(registry, registry)}"

    @property
    def _entries(self) -> list[str]:
        return [entry.strip().lower().removeprefix(_INSECURE) for entry in self.allowed]

    def is_private(self, registry: str) -> bool:
        """Whether a registry may be at a private address."""
        hosts = [entry.partition("/")[0] for entry in self._entries]
        return any(host == registry for host in hosts if not _GLOB.search(host))


class Registry:
    """An image of a registry, as a source that must be closed."""

    def __init__(self, reference: ImageReference, rules: RegistryRules, *, tenant: str, credential: str) -> None:
        self._reference = reference
        self._rules = rules
        self._tenant = tenant
        self._credential = credential
        self._url = rules.url(reference.registry)
        host = urlsplit(self._url)
        port = host.port or (80 if host.scheme == "http" else 443)
        name = host.hostname or ""
        host_port = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        private = (host_port,) if rules.is_private(reference.registry) else ()
        tls = rules.tls
        self._own = _client(HttpPolicy(allowed_hosts=() if private else (host_port,), private_hosts=private), tls)
        self._public = _client(HttpPolicy(allowed_hosts=("*",), ports=(443,)), tls)
        self._authorization = ""

    async def aclose(self) -> None:
        await self._own.aclose()
        await self._public.aclose()

    async def pin(self) -> str:
        async with _within(_SECONDS):
            return (await self._manifest())[0]

    async def find(self) -> FoundImage:
        async with _within(_SECONDS):
            digest, manifest = await self._manifest()
            if "manifests" in mapping(manifest):
                _, manifest = await self._manifest(chosen(manifest))
            config, layers = contents(manifest)
            async with self._answer(f"blobs/sha256:{blob_name(config)}") as answer:
                data = await _read(answer)
            document(data, config)
            return FoundImage(digest=digest, config=data, layers=layers)

    async def fetch(self, layer: Layer, target: Path) -> None:
        digest = hashlib.sha256()
        name = blob_name(layer.name)
        async with _within(_LAYER_SECONDS), self._answer(f"blobs/sha256:{name}") as answer:
            with target.open("xb") as file:
                async for data in answer.aiter_raw():
                    digest.update(data)
                    file.write(data)
                    if file.tell() > layer.size:
                        raise missing("a layer is larger than its manifest says")
        if digest.hexdigest() != name:
            raise missing("a layer has another digest than its manifest names")

    async def _manifest(self, digest: str = "") -> tuple[str, object]:
        """(digest, document) of the manifest with a digest, or of the reference's manifest."""
        name = digest or self._reference.digest or self._reference.tag or "latest"
        is_digest = name.startswith("sha256:")
        if is_digest:
            blob_name(name)
        async with self._answer(f"manifests/{quote(name, safe=':')}", accept=_MANIFESTS, redirects=0) as answer:
            data = await _read(answer)
        return f"sha256:{hashlib.sha256(data).hexdigest()}", document(data, name if is_digest else "")

    @asynccontextmanager
    async def _answer(
        self, path: str, *, accept: str = "*/*", redirects: int = _MOST_REDIRECTS
    ) -> AsyncGenerator[httpx2.Response]:
        """The response for a path of the repository. Raises PreconditionFailed, Unavailable."""
        url = f"{self._url}/v2/{self._reference.name}/{path}"
        client, headers = self._own, {"Accept": accept, "Accept-Encoding": "identity"}
        authorized = False
        try:
            for _ in range(redirects + 2):
                own = {"Authorization": self._authorization} if self._authorization and client is self._own else {}
                async with client.stream("GET", url, headers={**headers, **own}) as answer:
                    if answer.status_code == 401 and client is self._own and not authorized:
                        # Without a token, or with one that has expired.
                        authorized = True
                        self._authorization = await self._authorized(answer.headers.get("WWW-Authenticate", ""))
                        if self._authorization:
                            continue
                    if answer.status_code not in _REDIRECTS:
                        self._check(answer, is_own=client is self._own)
                        yield answer
                        return
                    if not redirects:
                        raise missing("the registry sends elsewhere for a manifest")
                    url = urljoin(url, answer.headers.get("Location", ""))
                    client = self._own if client is self._own and self._is_own(url) else self._public
                    if client is self._public and not url.startswith("https://"):
                        raise missing("the registry sends to a URL without TLS for a layer")
        except (ToolFailure, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unavailable(f"the registry of the image cannot be reached: {error}", field=FIELD) from None
        raise missing("the registry sends from one place to the next")

    def _check(self, answer: httpx2.Response, *, is_own: bool) -> None:
        code = answer.status_code
        if code == 200:
            return
        if code in (401, 403, 404) and is_own:
            # A registry answers the same for missing and for forbidden images.
            raise missing(
                f"the registry answers {code} for {self._reference}",
                "the operator keeps credentials in FLEET_IMAGE_CREDENTIALS; see docs/environments.md",
            )
        raise Unavailable(f"the registry of the image answers {code}", field=FIELD)

    def _is_own(self, url: str) -> bool:
        own, other = urlsplit(self._url), urlsplit(url)
        return (own.scheme, own.netloc) == (other.scheme, other.netloc)

    async def _authorized(self, challenge: str) -> str:
        """The `Authorization` header for a challenge; empty without one."""
        kind, _, rest = challenge.partition(" ")
        challenge_parameters = dict(_CHALLENGE.findall(rest))
        if kind.lower() == "basic":
            credential = await self._credential_for(self._url)
            return _basic(credential) if credential else ""
        realm = challenge_parameters.get("realm", "")
        is_own = self._is_own(realm)
        if kind.lower() != "bearer" or not (is_own or realm.startswith("https://")):
            return ""
        credential = await self._credential_for(realm)
        headers = {"Authorization": _basic(credential)} if credential else {}
        query = {"scope": f"repository:{self._reference.name}:pull"}
        if service := challenge_parameters.get("service"):
            query["service"] = service
        client = self._own if is_own else self._public
        async with client.stream("GET", realm, params=query, headers=headers) as answer:
            if answer.status_code != 200:
                return ""
            token = mapping(document(await _read(answer)))
        return f"Bearer {string(token.get('token')) or string(token.get('access_token'))}"

    async def _credential_for(self, url: str) -> Credential | None:
        lookup, reference = self._rules.credentials, self._credential
        try:
            credential = await lookup(self._tenant, reference, url) if lookup is not None else None
        except PreconditionFailed:
            return None  # the credential is not for this host
        except InvalidRequest:
            credential = None
        if credential is None and reference:
            field = "environment.image_credential_ref"
            raise InvalidRequest(f"there is no credential {reference[:64]!r}", field=field)
        return credential


def _client(policy: HttpPolicy, tls: ssl.SSLContext | None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=GuardedTransport(policy, tls=tls), follow_redirects=False, trust_env=False)


@asynccontextmanager
async def _within(seconds: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable(f"the registry of the image took more than {seconds:g} s", field=FIELD) from None


async def _read(answer: httpx2.Response) -> bytes:
    data = bytearray()
    async for piece in answer.aiter_raw(CHUNK):
        data += piece
        if len(data) > LARGEST_DOCUMENT:
            raise missing(f"one of its documents has more than {LARGEST_DOCUMENT:,} bytes")
    return bytes(data)


def _basic(credential: Credential) -> str:
    text = f"{credential.username}:{credential.password}"
    return f"Basic {base64.b64encode(text.encode()).decode()}"
