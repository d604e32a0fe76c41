"""The git tool: against a real server over HTTP with a password, in the clone alone, and attacks on both."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.sandbox import IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from swe_ai_fleet.tools import GitRemotes, GitTool, RemoteGrant, ShellTool
from tests.confinement import needs_bwrap, until
from tests.git_server import ENCODED, USER, GitServer, git_server, served_copy
from tests.git_server import PASSWORD as SECRET
from tests.tool_doubles import ok

pytestmark = needs_bwrap


def project(server: GitServer) -> Path:
    return server.root / "team/project.git"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A person's repository, and what the server serves of it."""
    path = tmp_path_factory.mktemp("template")
    source = make_repository(path / "source", {"app.py": "a = 1\n"})
    git(source, "tag", "-a", "v1", "-m", "one")
    git(source, "branch", "side")
    commit_files(source, {"later.py": "later\n"})
    (path / "served").mkdir()
    served_copy(source, path / "served/team")
    git(path, "init", "-q", "--bare", "-b", "main", "served/team/empty.git")
    return path


@pytest.fixture
async def server(tmp_path: Path, template: Path) -> AsyncIterator[GitServer]:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    async with git_server(tmp_path / "served") as running:
        yield running


def grant(server: GitServer, **changed: object) -> RemoteGrant:
    options: dict[str, object] = {
        "name": "origin", "url": f"{server.url}/team/project.git", "push": ("fix/*",), "username": USER,
        "secret": SECRET, "private": True, "insecure": True,
    }  # fmt: skip
    return RemoteGrant(**(options | changed))  # type: ignore[arg-type]


@pytest.fixture
async def workspace(tmp_path: Path) -> AsyncIterator[LocalWorkspace]:
    (tmp_path / "clone").mkdir()
    async with Sandbox(SandboxPolicy()).workspace(tmp_path / "clone") as opened:
        yield opened


def make_tool(workspace: LocalWorkspace, *grants: RemoteGrant, **options: object) -> GitTool:
    remotes = GitRemotes(Sandbox(SandboxPolicy()), grants, **options)  # type: ignore[arg-type]
    return GitTool(workspace, remotes=remotes)


@pytest.fixture
async def tool(workspace: LocalWorkspace, server: GitServer) -> GitTool:
    """A tool with a grant for the project, whose workspace holds a clone of it."""
    made = make_tool(workspace, grant(server))
    await ok(made.clone("origin"))
    server.seen.clear()
    return made


async def failed(tool: GitTool, call: Awaitable[ToolResult], *said: str, outcome: Outcome = Outcome.ERROR) -> None:
    result = await call
    entry = tool.pipeline.trail.entries[-1]
    decision = PolicyDecision.REFUSED if outcome is Outcome.REFUSED else PolicyDecision.ALLOWED
    assert (result.success, result.outcome, entry.outcome, entry.decision) == (False, outcome, outcome, decision), (
        result.observation()
    )
    for text in said:
        assert text in result.observation()
    assert SECRET not in result.observation()


async def refused(tool: GitTool, call: Awaitable[ToolResult], *said: str) -> None:
    await failed(tool, call, *said, outcome=Outcome.REFUSED)


async def shell(workspace: LocalWorkspace, line: str) -> str:
    return (await ok(ShellTool(workspace).run_command(line))).content


async def commit(tool: GitTool, workspace: LocalWorkspace, name: str, content: str) -> str:
    (workspace.root / name).write_text(content)
    await ok(tool.add([name]))
    return str((await ok(tool.commit(f"Change {name}"))).metadata["commit_sha"])


def everything_below(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink())


async def test_clone_fetch_and_pull(
    tool: GitTool, workspace: LocalWorkspace, server: GitServer, tmp_path: Path
) -> None:
    root = workspace.root
    assert (root / "later.py").read_text() == "later\n"
    assert git(root, "rev-parse", "HEAD") == git(project(server), "rev-parse", "main")
    branches = ["refs/heads/main", "refs/remotes/origin/main", "refs/remotes/origin/side"]
    assert git(root, "branch", "-a", "--format=%(refname)").split() == branches
    assert (git(root, "tag"), git(root, "fsck", "--full"), git(root, "status", "--porcelain")) == ("v1", "", "")
    assert git(root, "config", "remote.origin.url") == f"{server.url}/team/project.git"
    assert (await ok(tool.status())).content.splitlines()[0] == "## main...origin/main"
    source, served = tmp_path / "source", str(project(server))
    old = git(project(server), "rev-parse", "main")
    new = commit_files(source, {"news.py": "news\n"})
    git(source, "push", "-q", served, "main")
    fetched = await ok(tool.fetch(branches=["main"]))
    assert fetched.metadata["refs"] == {"origin/main": {"old": old, "new": new}}
    assert git(workspace.root, "rev-parse", "HEAD") == old
    pulled = await ok(tool.pull())
    assert (pulled.metadata["branch"], pulled.metadata["clean"]) == ("main", True)
    assert (workspace.root / "news.py").read_text() == "news\n"
    await failed(tool, tool.fetch(branches=["absent"]), "no such branch")
    # Both sides have changed, then both the same line.
    await commit(tool, workspace, "mine.py", "mine\n")
    commit_files(source, {"theirs.py": "theirs\n"})
    git(source, "push", "-q", served, "main")
    await ok(tool.pull())
    assert len(git(workspace.root, "rev-list", "--parents", "-1", "HEAD").split()) == 3
    await commit(tool, workspace, "app.py", "mine\n")
    commit_files(source, {"app.py": "theirs\n"})
    git(source, "push", "-q", served, "main")
    conflict = await tool.pull()
    assert (conflict.success, conflict.metadata["conflicts"]) == (False, ["app.py"])
    assert "git_merge(abort=true)" in conflict.observation()
    assert (await ok(tool.merge(abort=True))).metadata["clean"]


async def test_clone_never_over_something(workspace: LocalWorkspace, server: GitServer, tmp_path: Path) -> None:
    tool = make_tool(workspace, grant(server))
    (tmp_path / "clone-sibling").mkdir()
    (workspace.root / "full").mkdir()
    (workspace.root / "full/file").write_text("mine")
    (workspace.root / "out").symlink_to(tmp_path / "clone-sibling")
    await refused(tool, tool.clone("origin", "full"), "not empty")
    await refused(tool, tool.clone("origin", "."), "not empty")
    for path in ("../clone-sibling", "/workspace-sibling", str(tmp_path / "clone-sibling"), "out", "out/x", "/"):
        await refused(tool, tool.clone("origin", path), "outside the workspace")
    await refused(tool, tool.clone("origin", ".git/x"), ".git")
    await failed(tool, tool.clone("origin", "full/file"), "full/file")
    assert list((tmp_path / "clone-sibling").iterdir()) == []
    assert server.seen == []


async def test_push(tool: GitTool, workspace: LocalWorkspace, server: GitServer, tmp_path: Path) -> None:
    def there(branch: str) -> str:
        return git(project(server), "rev-parse", branch)

    await ok(tool.checkout("fix/one", create=True))
    first = await commit(tool, workspace, "app.py", "a = 2\n")
    pushed = await ok(tool.push())
    assert pushed.metadata == {"remote": "origin", "branch": "fix/one", "old": "", "new": first, "forced": False}
    assert there("fix/one") == git(workspace.root, "rev-parse", "refs/remotes/origin/fix/one") == first
    second = await commit(tool, workspace, "app.py", "a = 3\n")
    again = await ok(tool.push())
    assert (again.metadata["old"], again.metadata["new"]) == (first, second)
    # No force without a lease.
    await shell(workspace, "git -c user.name=n -c user.email=n@x commit -q --amend -m rewritten")
    await failed(tool, tool.push(), "git_pull(branch='fix/one')")
    assert there("fix/one") == second
    # Somebody else pushes: what the clone last saw is no longer there.
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", "-b", "fix/one", str(project(server)), str(other))
    theirs = commit_files(other, {"theirs": "theirs\n"})
    git(other, "push", "-q", "origin", "fix/one")
    await failed(tool, tool.push(force_with_lease=True), "git_fetch")
    assert there("fix/one") == theirs
    await ok(tool.fetch())
    forced = await ok(tool.push(force_with_lease=True))
    assert (forced.metadata["forced"], forced.metadata["old"]) == (True, theirs)
    assert there("fix/one") == git(workspace.root, "rev-parse", "HEAD")


async def test_branches_that_are_not_granted(tool: GitTool, workspace: LocalWorkspace, server: GitServer) -> None:
    await commit(tool, workspace, "app.py", "a = 2\n")
    before = git(project(server), "for-each-ref")
    await refused(tool, tool.push(), "'main'", "fix/*")
    await refused(tool, tool.push(to="feature"), "not granted")
    await refused(tool, tool.push(to="refs/heads/fix/x"), "not a branch name")
    wide = make_tool(workspace, grant(server, push=("*",), protected=()))
    await refused(wide, wide.push(), "default branch")
    guarded = make_tool(workspace, grant(server, push=("*",), protected=("release/*",)))
    await refused(guarded, guarded.push(to="release/1"), "protected")
    assert git(project(server), "for-each-ref") == before
    named = make_tool(workspace, grant(server, push=("*", "main")))
    await ok(named.push())
    assert git(project(server), "rev-parse", "main") == git(workspace.root, "rev-parse", "HEAD")


async def test_a_server_that_says_no(tool: GitTool, workspace: LocalWorkspace, server: GitServer) -> None:
    hook = project(server) / "hooks/update"
    hook.write_text(f"#!/bin/sh\necho 'ask a person, you sent {SECRET} as {ENCODED}' >&2\nexit 1\n")
    hook.chmod(0o755)
    said = "ask a person, you sent [masked] as [masked]"
    await failed(tool, tool.push(to="fix/x"), said, "hook declined")
    assert SECRET not in repr(tool.pipeline.trail.entries)
    for changed, *words in (
        ({"secret": "not the password"}, "HTTP 401", "credential"), ({"secret": ""}, "HTTP 401"),
        ({"url": "http://127.0.0.1:9/a.git"}, "cannot connect to 127.0.0.1:9"),
    ):  # fmt: skip
        other = make_tool(workspace, grant(server, **changed))
        await failed(other, other.fetch(), *words)
    # Objects that would be a configuration in the clone are not taken.
    blob = git(project(server), "hash-object", "-w", "--stdin", stdin=b"[core]\n\tfsmonitor = touch pwned\n")
    inner = git(project(server), "mktree", stdin=f"100644 blob {blob}\tconfig\n".encode())
    tree = git(project(server), "mktree", "--missing", stdin=f"040000 tree {inner}\t.git\n".encode())
    git(project(server), "update-ref", "refs/heads/evil", git(project(server), "commit-tree", tree, "-m", "evil"))
    await failed(tool, tool.fetch(), "git fetch")


BAD_REMOTES = (
    "--upload-pack=touch pwned", "-u", "", ".", "/etc", "../served/team/project.git", "upstream", "origin ", "ORIGIN",
    "ext::sh -c touch% pwned", "file:///etc", "file::/etc", "ssh://host/x.git", "git@host:x.git", "git://host/x.git",
    "ftp://host/x.git", "http::http://host/x.git", "https://other.example/team/project.git", "{url}/../../etc",
    "{url}.evil", "{url}?x=1", "{url}#x", "{url}/%2e%2e/x", "http://127.0.0.1@other.example/team/project.git",
)  # fmt: skip


async def test_remotes_that_are_not_granted(tool: GitTool, workspace: LocalWorkspace, server: GitServer) -> None:
    for remote in BAD_REMOTES:
        text = remote.format(url=f"{server.url}/team/project.git")
        for call in (tool.fetch(text), tool.pull(text), tool.push(text, to="fix/x"), tool.clone(text, "new")):
            await refused(tool, call)
    url = server.url.replace("http://", f"http://robot:{SECRET}@") + "/team/project.git"
    for call in (tool.clone(url, "new"), tool.fetch(url), tool.push(url)):
        await refused(tool, call, "user name or password")
        assert SECRET not in repr(tool.pipeline.trail.entries)
    bare = GitTool(workspace)
    for call in (bare.clone("https://example.org/a.git"), bare.fetch(), bare.pull(), bare.push()):
        await refused(bare, call, "GitTool(remotes=")
    granted = RemoteGrant(name="origin", url="https://example.org/a.git")
    unconfined = GitTool(workspace, remotes=GitRemotes(Sandbox(SandboxPolicy(level=IsolationLevel.NONE)), [granted]))
    await refused(unconfined, unconfined.fetch(), "it takes bubblewrap")
    assert server.seen == []
    assert not (workspace.root / "pwned").exists() and not (workspace.root / "new").exists()


async def test_branches_paths_and_refs_that_are_none(
    tool: GitTool, workspace: LocalWorkspace, server: GitServer
) -> None:
    for branch in ("--upload-pack=touch pwned", "-f", ":main", "a:b", "a b", "a..b", "*", "", "refs/heads/x", "x.lock"):
        for call in (
            tool.fetch(branches=[branch]), tool.pull(branch=branch), tool.push(branch=branch), tool.push(to=branch),
            tool.clone("origin", "new", branch=branch),
        ):  # fmt: skip
            await refused(tool, call, "not a branch name")
    for path in ("../outside", "/etc/passwd", "/workspace-sibling/x"):
        for call in (tool.add([path]), tool.diff([path]), tool.log(path=path), tool.checkout(paths=[path])):
            await refused(tool, call, "Give a path relative to the repository")
    for ref in ("--output=pwned", "-x", "--upload-pack=touch pwned"):
        for call in (tool.show(ref), tool.log(ref=ref), tool.checkout(ref), tool.branch(ref), tool.merge(ref)):
            await refused(tool, call, "is an option, not a ref")
    assert server.seen == [] and not list(workspace.root.glob("*pwned*"))


TRAPS = (
    "git config url.http://127.0.0.1:9/.insteadOf {server}/; git config url.http://127.0.0.1:9/.insteadOf http://",
    "git config url.ext::{trap}.pushInsteadOf http://; git config protocol.ext.allow always",
    "git config remote.origin.url ext::{trap}; git config remote.origin.pushurl ext::{trap}",
    "git config remote.origin.url $PWD; git config remote.origin.uploadpack {trap}; "
    "git config remote.origin.receivepack {trap}; git config remote.origin.vcs evil",
    "git config http.proxy http://127.0.0.1:9; git config remote.origin.proxy http://127.0.0.1:9; "
    "git config http.extraHeader 'X-Evil: 1'; git config http.cookieFile /workspace/cookies",
    "git config credential.helper '!{trap}'; git config core.askPass {trap}; git config core.sshCommand {trap}",
    "for h in pre-push reference-transaction post-checkout post-merge pre-merge-commit commit-msg; do "
    "cp {trap} .git/hooks/$h; done; git config core.hooksPath /workspace/.git/hooks",
    "git config include.path /workspace/.git/evil; git config -f .git/evil core.sshCommand {trap}; "
    "git config -f .git/evil url.ext::{trap}.insteadOf http://; git config -f .git/evil core.askPass {trap}",
    "git config remote.origin.fetch '+refs/heads/*:refs/heads/*'; git config remote.origin.prune true; "
    "git config remote.origin.push ':refs/heads/side'; git config remote.origin.mirror true; "
    "git config push.followTags true; git config push.default matching; git config fetch.prune true",
    "git config core.fsmonitor {trap}; git config core.gitProxy {trap}; git config core.alternateRefsCommand {trap}; "
    "git config merge.x.driver {trap}; echo '* merge=x' > .git/info/attributes; git config push.gpgSign true; "
    "git config gpg.program {trap}; git config merge.verifySignatures true",
)


@pytest.mark.slow  # quick: attacks/test_addresses.py
async def test_what_the_clone_is_configured_to_has_no_effect(
    tool: GitTool, workspace: LocalWorkspace, server: GitServer, tmp_path: Path
) -> None:
    """All of it at once: a single one that had an effect would spoil a call or leave a trace."""
    trap = workspace.root / ".git/trap"
    trap.write_text("#!/bin/sh\ntouch /workspace/sprung\nenv >> /workspace/sprung\nexit 0\n")
    trap.chmod(0o755)
    (workspace.root / ".git/hooks").mkdir(exist_ok=True)
    for line in TRAPS:
        await shell(workspace, line.format(trap="/workspace/.git/trap", server=server.url))
    (workspace.root / "sprung").unlink(missing_ok=True)
    news = commit_files(tmp_path / "source", {"news.py": "news\n"})
    git(tmp_path / "source", "push", "-q", str(project(server)), "main")
    assert (await ok(tool.fetch())).metadata["refs"]["origin/main"]["new"] == news  # type: ignore[index,call-overload]
    await ok(tool.pull())
    assert (workspace.root / "news.py").read_text() == "news\n"
    await ok(tool.checkout("fix/one", create=True))
    mine = await commit(tool, workspace, "app.py", "a = 2\n")
    await ok(tool.push())
    side = git(project(server), "rev-parse", "side")
    refs = git(project(server), "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").split("\n")
    assert refs == [f"fix/one {mine}", f"main {news}", f"side {side}"]
    assert not (workspace.root / "sprung").exists()
    ended = [entry for entry in tool.pipeline.trail.entries if entry.outcome is not Outcome.STARTED]
    assert {entry.outcome for entry in ended} == {Outcome.SUCCESS}
    places = ("git-upload-pack", "git-receive-pack")
    asked = {f"/team/project.git/{place}" for place in (*places, *(f"info/refs?service={place}" for place in places))}
    assert {path for _, path in server.seen} <= asked


PROWL = """
import os, time
seen = set()
open("/workspace/ready", "w").close()
while not os.path.exists("/workspace/stop"):
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                seen.add(open(f"/proc/{process}/{name}", "rb").read())
            except OSError:
                pass
    for folder in ("/tmp", "/run", "/home", "/transport"):
        for place, _, files in os.walk(folder):
            for file in files:
                try:
                    seen.add(open(os.path.join(place, file), "rb").read(100000))
                except OSError:
                    pass
    time.sleep(0.02)
open("/workspace/seen", "wb").write(b"|".join(seen))
"""


async def test_nobody_in_a_sandbox_sees_the_credential(
    tool: GitTool, workspace: LocalWorkspace, server: GitServer, tmp_path: Path
) -> None:
    await ok(tool.checkout("fix/one", create=True))
    await commit(tool, workspace, "app.py", "a = 2\n")
    (workspace.root / "prowl.py").write_text(PROWL)
    everywhere: set[bytes] = set()
    asked = 0

    async def look_around(request: web.Request) -> web.StreamResponse:
        # While git is at it: what this host shows of all processes that this one began, the transport's among them.
        # Those of another worker's tests may hold the same password, where they are meant to.
        nonlocal asked
        asked += 1
        for process in psutil.Process().children(recursive=True):
            for name in ("environ", "cmdline"):
                with suppress(OSError):
                    everywhere.add(Path(f"/proc/{process.pid}/{name}").read_bytes())
        server.instead = None
        answer = await server.handle(request)
        server.instead = look_around
        return answer

    server.instead = look_around
    prowling = asyncio.ensure_future(ShellTool(workspace).run_command("python3 prowl.py"))
    await until(lambda: (workspace.root / "ready").exists() or prowling.done())
    assert not prowling.done(), prowling.result().observation()
    try:
        await ok(tool.push())
        await ok(tool.fetch())
    finally:
        (workspace.root / "stop").touch()
        await prowling
    assert asked >= 4
    seen = (workspace.root / "seen").read_bytes()
    assert b"prowl.py" in seen
    assert any(b"/transport/repository" in content for content in everywhere)
    shown = b"".join([seen, *everywhere, everything_below(workspace.root), repr(tool.pipeline.trail.entries).encode()])
    for secret in (SECRET.encode(), ENCODED.encode(), SECRET.encode().replace(b" ", b"%20")):
        assert secret not in shown
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("fleet-transport-*/repository/refs/heads/fix"))


async def test_redirects_are_not_followed(tool: GitTool, server: GitServer) -> None:
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        status = (301, 302, 307, 308)[len(asked) % 4]
        return web.Response(status=status, headers={"Location": f"http://localhost/stolen{request.path}"})

    server.instead = redirect
    for _ in range(2):
        await refused(tool, tool.fetch(), "redirects are not followed")
        await refused(tool, tool.push(to="fix/x"), "redirects are not followed")
    assert asked and not any("stolen" in path for path in asked)


async def test_a_host_at_a_private_address_needs_a_grant_for_that(workspace: LocalWorkspace, server: GitServer) -> None:
    class Rebinding:
        async def resolve(self, host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"]

    for url, resolver in ((server.url, None), (server.url.replace("127.0.0.1", "git.example.org"), Rebinding())):
        granted = grant(server, url=f"{url}/team/project.git", private=False)
        tool = make_tool(workspace, granted, resolver=resolver)
        await refused(tool, tool.clone("origin"), "not on the public internet")
    assert server.seen == []
    assert list(workspace.root.iterdir()) == []


async def ask(gateway: str, method: str, place: str, body: bytes = b"", *headers: str) -> int:
    """The status of an answer to whoever knows a gateway's URL; KEY stands for what its path begins with."""
    address, _, key = gateway.partition("/")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {place.replace('KEY', f'/{key}')} HTTP/1.1", f"Host: {address}", *headers, *length, "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


def commands(*lines: str) -> bytes:
    return b"".join(f"{len(line) + 4:04x}{line}".encode() for line in lines) + b"0000PACK"


async def test_a_git_that_was_taken_over_reaches_one_repository_and_pushes_the_one_change(
    tool: GitTool, workspace: LocalWorkspace, server: GitServer
) -> None:
    """What it could ask of its way out, while a push is under way."""
    await ok(tool.checkout("fix/x", create=True))
    null, other, new = "0" * 40, "2" * 40, await commit(tool, workspace, "app.py", "a = 2\n")
    good = f"{null} {new} refs/heads/fix/x"
    asked: list[tuple[str, str, bytes, str]] = [
        *(("GET", place, b"", "") for place in (
            "/info/refs?service=git-upload-pack", "/wrong/info/refs?service=git-upload-pack", "KEY/info/refs",
            "KEY/HEAD", "KEY/../other.git/info/refs?service=git-upload-pack", "http://169.254.169.254/",
        )),
        ("CONNECT", "127.0.0.1:22", b"", ""), ("POST", "KEY/git-upload-pack", b"", "Transfer-Encoding: chunked"),
        *(("POST", "KEY/git-receive-pack", body, "") for body in (
            commands(f"{null} {new} refs/heads/main"), commands(f"{new} {null} refs/heads/fix/x"), commands(),
            commands(f"{null} {other} refs/heads/fix/x"), commands(f"{good}\0x", f"{null} {new} refs/heads/main"),
            b"0000", b"", b"zzzz", b"00ff" + good.encode(), commands(good).replace(b"0000PACK", b""),
        )),
        ("POST", "KEY/git-receive-pack", commands(good), "Content-Encoding: gzip"),
    ]  # fmt: skip
    answers: list[int] = []

    async def meddle(request: web.Request) -> web.StreamResponse:
        if "git-receive-pack" in request.path_qs and not answers:
            lines = b"".join(
                Path(f"/proc/{child.pid}/cmdline").read_bytes() for child in psutil.Process().children(recursive=True)
            )
            [gateway] = set(re.findall(rb"http://(127\.0\.0\.1:[0-9]+/[\w-]{32})\0", lines))
            seen = len(server.seen)
            for method, place, body, header in asked:
                answers.append(await ask(gateway.decode(), method, place, body, *([header] if header else [])))
            assert len(server.seen) == seen
        server.instead = None
        answer = await server.handle(request)
        server.instead = meddle
        return answer

    server.instead = meddle
    await tool.push()
    assert answers == [502] * len(asked)
