"""A clone's base commit as a git bundle that stands on its own, with its history as far as that can be carried."""

from __future__ import annotations

from swe_ai_fleet.adapters.git_workspace.git import HISTORY_MEMORY_BYTES, Allowance, Git, Layout
from swe_ai_fleet.adapters.git_workspace.skeleton import FIXED_IDENTITY
from swe_ai_fleet.domain.bundle import BUNDLE_BRANCH, RepositoryBundle
from swe_ai_fleet.domain.errors import ResourceExhausted

_ALLOWANCE = Allowance(memory_bytes=HISTORY_MEMORY_BYTES)
_REF = f"refs/heads/{BUNDLE_BRANCH}"


async def bundled(git: Git, layout: Layout, base: str, *, shallow: bool, max_bytes: int) -> RepositoryBundle:
    """The bundle of `base`, made in a git directory of our own.

    Without its history where that is cut off (`shallow`) or makes more than `max_bytes`. Raises ResourceExhausted
    where the files alone make more.
    """
    if not shallow:
        try:
            return RepositoryBundle(commit=base, data=await _pack(git, layout, base, max_bytes))
        except ResourceExhausted:
            pass  # the files alone may fit
    made = await git.run("commit-tree", f"{base}^{{tree}}", "-m", "Base", layout=layout, variables=FIXED_IDENTITY)
    try:
        data = await _pack(git, layout, made.text(), max_bytes)
    except ResourceExhausted as error:
        raise ResourceExhausted(
            f"the files of the repository make a bundle of more than {max_bytes} bytes",
            hint="agents that others run get no repository of this size",
        ) from error
    return RepositoryBundle(commit=made.text(), data=data, without_history=True)


async def _pack(git: Git, layout: Layout, commit: str, max_bytes: int) -> bytes:
    await git.run("update-ref", "--no-deref", _REF, commit, layout=layout)
    made = await git.run(
        *("bundle", "create", "--quiet", "-", _REF),
        layout=layout,
        output_limit=max_bytes,
        allowance=_ALLOWANCE,
    )
    return made.stdout
