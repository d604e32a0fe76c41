"""Repositories that clients uploaded: checked once, stored as a blob, unpacked on each node that needs them.

The header of a bundle is untrusted: all of it is parsed and checked.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.bundles import SHALLOW_REFS
from swe_ai_fleet.adapters.git_workspace.directories import appearing, locked
from swe_ai_fleet.adapters.git_workspace.git import COMMIT_ID, Allowance, Git, GitFailed, GitLayout, unpacking
from swe_ai_fleet.adapters.git_workspace.git_dirs import write_git_dir
from swe_ai_fleet.adapters.git_workspace.local import Resolved
from swe_ai_fleet.adapters.git_workspace.staging import check_size
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

MAX_HEADER_BYTES = 1024 * 1024
MAX_REFS = 10_000
_SIGNATURES = (b"# v2 git bundle", b"# v3 git bundle")
_REF = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) (HEAD|refs/[^\x00-\x20\x7f~^:?*\[\\]{1,240})")
_FORMAT = b"@object-format="


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """The header of an uploaded bundle: commits (or tags) by the names of refs. Its pack begins at `pack_at`."""

    refs: Mapping[str, str]
    object_format: str
    pack_at: int


def read_upload_header(beginning: bytes) -> UploadHeader:
    """The header at the beginning of a self-contained bundle (git's `bundle-format`).

    Raises InvalidRequest for other data, missing prerequisites or malformed refs.
    """
    header, blank, _ = beginning[: MAX_HEADER_BYTES + 2].partition(b"\n\n")
    signature, *lines = header.split(b"\n")
    if not blank or signature not in _SIGNATURES:
        raise _refused("this is not a git bundle, or one with too many refs")
    refs: dict[str, str] = {}
    object_format = "sha1"
    for line in lines:
        if line.startswith(b"-"):
            raise _refused("the bundle depends on commits that it does not contain")
        if line.startswith(_FORMAT) and line[len(_FORMAT) :] in (b"sha1", b"sha256"):
            object_format = line[len(_FORMAT) :].decode()
        elif line.startswith(b"@"):
            raise _refused(f"the bundle requires {line[1:64].decode('ascii', 'replace')!r}, which is not supported")
        else:
            match = _REF.fullmatch(line)
            if (
                match is None
                or not _is_valid_ref(match[2])
                or len(match[1]) != (64 if object_format == "sha256" else 40)
            ):
                raise _refused("the bundle contains something that is not a ref")
            try:
                refs[match[2].decode()] = match[1].decode()
            except UnicodeDecodeError:
                raise _refused("the bundle contains a ref that is not UTF-8") from None
    if not refs or len(refs) > MAX_REFS:
        raise _refused(f"the bundle has {len(refs)} refs")
    return UploadHeader(refs=refs, object_format=object_format, pack_at=len(header) + 2)


def _is_valid_ref(name: bytes) -> bool:
    """Whether the parts of a ref's name are valid for `git check-ref-format`."""
    if b".." in name or b"@{" in name or name.endswith(b"."):
        return False
    return all(part and not part.startswith(b".") and not part.endswith(b".lock") for part in name.split(b"/"))


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(
        reason, field="chunk", hint="create it with the whole history: git bundle create FILE HEAD main"
    )


BlobFetch = Callable[[BlobRef], Awaitable[bytes]]

UPLOADS = "uploads"
"""Takes the place of the execution in the names of their blobs, which belong to none."""
MAX_OBJECTS = 10_000_000
_PACK_SECONDS = 900.0
MEMORY_BYTES = 2 * 1024**3
# The limit of a commit's files by its bundle: text packs to a tenth; what packs to a hundredth is an attack.
_FREE_BYTES = 64 * 1024 * 1024
_MOST_TIMES = 100
_OURS = "refs/fleet/"
_NO_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|^-")
# Faults of old but valid histories. Everything that could harm a checkout (`..`, `.git`, a submodule's name or URL that
# is an option) stays an error.
_TOLERATED = (
    *("zeroPaddedFilemode", "badFilemode", "badTimezone", "badDateOverflow", "missingSpaceBeforeDate"),
    *("missingSpaceBeforeEmail", "missingEmail", "badEmail", "missingNameBeforeEmail", "zeroPaddedDate"),
    *("missingTaggerEntry", "badTagName", "nulInCommit", "gitignoreSymlink", "gitattributesSymlink", "mailmapSymlink"),
)


@dataclass(frozen=True, kw_only=True)
class UploadedRepositories:
    """Accepts uploaded bundles, and unpacks them on the nodes that need them.

    Args:
        fetch: Gets a bundle that was uploaded to another node; None: there are none.
    """

    git: Git
    fetch: BlobFetch | None

    async def take(
        self, tenant: str, cache: Path, bundle: Path, repo: RepoRef, store: Callable[[], Awaitable[None]]
    ) -> Resolved:
        """Check a bundle and unpack it into `cache`; `store` saves it for other nodes.

        A bundle that is refused or cannot be stored is removed. Raises InvalidRequest naming the field,
        ResourceExhausted, Unavailable, and the exceptions of `store`.
        """
        async with locked(cache.with_suffix(".lock")):
            if (cache / "HEAD").exists():
                resolved = await self._checked(tenant, cache, repo, bundle)
                await store()
                return resolved
            async with appearing(cache) as draft:
                await self._fill(tenant, draft, bundle, strict=True)
                resolved = await self._checked(tenant, draft, repo, bundle)
                await store()
            return resolved

    async def resolve(self, tenant: str, repo: RepoRef, digest: str, cache: Path) -> Resolved:
        """The commit of a reference, unpacked into the cache.

        Raises InvalidRequest, PreconditionFailed, Unavailable with `field`.
        """
        if not (cache / "HEAD").exists():
            async with locked(cache.with_suffix(".lock")):
                if not (cache / "HEAD").exists():
                    await self._fetched(tenant, digest, cache)
        os.utime(cache)
        return await self._resolved(cache, repo, prefix="repo.")

    async def _fetched(self, tenant: str, digest: str, cache: Path) -> None:
        missing = PreconditionFailed(
            f"there is no upload {digest[:12]}, or it has expired",
            field="repo.upload_id",
            hint="upload the bundle again",
        )
        if self.fetch is None:
            raise missing
        try:
            data = await self.fetch(upload_blob(tenant, digest))
        except NotFound:
            raise missing from None
        async with appearing(cache) as draft:
            bundle = draft / "bundle"
            await uninterrupted(asyncio.to_thread(bundle.write_bytes, data))
            await self._fill(tenant, draft, bundle, strict=False)
            bundle.unlink()

    async def _fill(self, tenant: str, directory: Path, bundle: Path, *, strict: bool) -> None:
        """Make a bare repository from a bundle, without hooks, alternates or configuration of its own."""
        header, pack = await uninterrupted(asyncio.to_thread(_lay_out, directory, bundle))
        rules = ",".join(f"{name}=ignore" for name in _TOLERATED)
        options = (f"--strict={rules}",) if strict else ()
        try:
            await self.git.run(
                *("index-pack", "--threads=2", *options, str(pack)),
                layout=GitLayout(git_dir=directory),
                timeout_seconds=_PACK_SECONDS,
                allowance=Allowance(memory_bytes=MEMORY_BYTES, owner=unpacking(tenant)),
            )
            lines = "".join(
                f"create {name} {commit}\n"
                for name, commit in header.refs.items()
                # Refs below the fleet's own prefix are for its deliveries, and are never removed.
                if name != "HEAD" and not name.startswith(_OURS)
            )
            if lines:
                layout = GitLayout(git_dir=directory)
                await self.git.run("update-ref", "--stdin", layout=layout, stdin=lines.encode())
        except GitFailed as error:
            raise InvalidRequest(
                f"the bundle is broken, or not safe to unpack: {error.message[:400]}", field="chunk"
            ) from error

    async def _checked(self, tenant: str, cache: Path, repo: RepoRef, bundle: Path) -> Resolved:
        """The commit in a client's request, if it can be checked out. Raises InvalidRequest, ResourceExhausted."""
        resolved = await self._resolved(cache, repo, prefix="header.")
        layout = GitLayout(git_dir=cache)
        # Every agent gets these files, uncompressed.
        status = await asyncio.to_thread(bundle.stat)
        most = _FREE_BYTES + _MOST_TIMES * status.st_size
        try:
            await check_size(self.git, layout, resolved.commit, most_bytes=most)
        except (GitFailed, PreconditionFailed) as error:
            raise InvalidRequest(f"the commit cannot be read: {error.message[:400]}", field="chunk") from error
        except ResourceExhausted as error:
            raise InvalidRequest(error.message, field="chunk", hint="leave out what a build generates") from error
        # All reachable objects must exist: a commit alone proves nothing about its ancestors.
        try:
            await self.git.run(
                *("rev-list", "--objects", "--quiet", resolved.commit),
                layout=layout,
                timeout_seconds=_PACK_SECONDS,
                allowance=Allowance(memory_bytes=MEMORY_BYTES, owner=unpacking(tenant)),
            )
        except GitFailed as error:
            raise InvalidRequest(
                f"the history of {resolved.commit[:12]} is not whole: {error.message[:400]}",
                field="chunk",
                hint=f"git fetch --unshallow; or name the commits where the history ends {SHALLOW_REFS}1, …",
            ) from error
        return resolved

    async def _resolved(self, cache: Path, repo: RepoRef, *, prefix: str) -> Resolved:
        if repo.commit:
            commit = repo.commit.lower()
            if not COMMIT_ID.fullmatch(commit) or not await self.git.commit(GitLayout(git_dir=cache), commit):
                raise _unknown(repo.commit, f"{prefix}commit")
            return Resolved(commit=commit)
        if repo.ref in ("", "HEAD"):
            return await self._head(cache, prefix)
        if _NO_REF.search(repo.ref):
            raise InvalidRequest(f"{repo.ref[:64]!r} is not a reference", field=f"{prefix}ref")
        names = (repo.ref, f"refs/{repo.ref}", f"refs/tags/{repo.ref}", f"refs/heads/{repo.ref}")
        for name in names:
            full = name.startswith("refs/") or COMMIT_ID.fullmatch(name) is not None
            commit = await self.git.commit(GitLayout(git_dir=cache), name) if full else ""
            if commit:
                branch = name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else ""
                return Resolved(commit=commit, branch=branch)
        raise _unknown(repo.ref, f"{prefix}ref")

    async def _head(self, cache: Path, prefix: str) -> Resolved:
        """The bundle's HEAD, else its only branch."""
        head = (cache / "HEAD").read_text().strip()
        branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else ""
        commit = await self.git.commit(GitLayout(git_dir=cache), "HEAD")
        if not commit:
            raise InvalidRequest("the bundle has no HEAD", field=f"{prefix}ref", hint="choose one of its branches")
        return Resolved(commit=commit, branch=branch)


def upload_blob(tenant: str, digest: str) -> BlobRef:
    """The blob with a tenant's uploaded bundle; its size is unknown here."""
    return BlobRef(name=f"{tenant}/{UPLOADS}/{digest}", digest=digest, size=0, media_type="application/x-git-bundle")


def _lay_out(directory: Path, bundle: Path) -> tuple[UploadHeader, Path]:
    """Make a bare repository with the bundle's pack, not indexed yet. Blocking."""
    with bundle.open("rb") as file:
        header = read_upload_header(file.read(MAX_HEADER_BYTES + 2))
        file.seek(header.pack_at)
        start = file.read(12)
        if start[:4] != b"PACK" or int.from_bytes(start[8:12], "big") > MAX_OBJECTS:
            raise InvalidRequest("the bundle has no pack, or one with too many objects", field="chunk")
        write_git_dir(directory, head=_head_line(header), object_format=header.object_format)
        ends = sorted({commit for name, commit in header.refs.items() if name.startswith(SHALLOW_REFS)})
        if ends:
            (directory / "shallow").write_text("".join(f"{commit}\n" for commit in ends))
        pack = directory / "objects/pack/pack-upload.pack"
        file.seek(header.pack_at)
        with pack.open("wb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
    return header, pack


def _head_line(header: UploadHeader) -> str:
    """The HEAD of a bundle as a ref to a branch at its commit; without a HEAD, the only branch."""
    branches = [name for name in header.refs if name.startswith("refs/heads/")]
    commit = header.refs.get("HEAD")
    if commit is None:
        return f"ref: {branches[0]}" if len(branches) == 1 else "ref: refs/heads/none"
    at_head = [name for name in branches if header.refs[name] == commit]
    usual = [name for name in at_head if name in ("refs/heads/main", "refs/heads/master")]
    heads = (usual or at_head)[:1]
    return f"ref: {heads[0]}" if heads else commit


def _unknown(name: str, field: str) -> InvalidRequest:
    return InvalidRequest(f"{name[:128]!r} is not a commit of the upload", field=field, hint="the bundle must have it")
