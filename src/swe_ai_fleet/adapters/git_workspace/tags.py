"""The tags of a commit's ancestry, which version tools and `git describe` read."""

from __future__ import annotations

from swe_ai_fleet.adapters.git_workspace.git import Git, Layout

MAX_TAGS = 5000


async def merged_tags(git: Git, layout: Layout, commit: str) -> tuple[str, ...]:
    """The lines of a packed-refs file for the tags that point into a commit's ancestry, at most 5000, sorted by name.

    A repository that lacks the commit has none.
    """
    listed = await git.run(
        *("for-each-ref", f"--merged={commit}", f"--count={MAX_TAGS}", "--sort=refname"),
        *("--format=%(objectname) %(objecttype) %(*objectname) %(refname)", "refs/tags"),
        layout=layout,
        expect=(0, 128, 129),
    )
    lines: list[str] = []
    for line in listed.lines() if listed.code == 0 else ():
        name, kind, peeled, ref = line.split(" ", 3)
        lines.append(f"{name} {ref}")
        if kind == "tag" and peeled:
            lines.append(f"^{peeled}")
    return tuple(lines)
