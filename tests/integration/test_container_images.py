"""Container images as the root of commands: found where rules allow it, unpacked once, shared, never written to."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone, ImageRules
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.sandbox.jail import python
from swe_ai_fleet.testing.repositories import make_repository
from tests.container_images import MadeImage, directory, entry, layer, link, of_this_machine
from tests.environments import make_provider, sh

PROGRAMS = ("id", "ls", "cat", "env", "mv", "ln", "mkdir", "rm")


@pytest.fixture(scope="module")
def image() -> MadeImage:
    config = {"User": "bob", "WorkingDir": "/app", "Env": ["PATH=/bin", "COLOUR=green", "HOME=/nowhere", "1=x"]}
    files = (directory("app"), entry("app/hidden", "of the image"), entry("usr/share/there", "of the image"))
    return MadeImage(layers=[of_this_machine(*PROGRAMS, files=files)], config=config)


class World:
    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "default").mkdir()
        self.provider = make_provider(place, images=ImageRules(folders=(place / "{tenant}",)))

    async def environment(self, image: str, **spec: Any) -> Environment:
        return await self.provider.environment(await self.pinned(), EnvironmentSpec(image=image, **spec))

    @asynccontextmanager
    async def clone(self, name: str, image: str, **spec: Any) -> AsyncGenerator[GitClone]:
        environment = await self.environment(image, **spec)
        async with self.provider.open("execution", name, await self.pinned(), environment) as clone:
            yield clone

    async def pinned(self) -> PinnedRepository:
        if not (self.place / "repo").exists():
            make_repository(self.place / "repo", {"README.md": "here\n"})
        return await self.provider.pin("default", RepoRef(location=str(self.place / "repo")))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_commands_run_in_the_image_with_its_user_variables_and_directory(world: World, image: MadeImage) -> None:
    async with world.clone("one", image.layout(world.place / "default/layout")) as clone:
        assert (await sh(clone, "id -u; id -g")).split() == ["1234", "2345"]
        assert (await sh(clone, "echo $COLOUR $HOME; cat /usr/share/there")) == "green /home/agent\nof the image"
        # The workspace stands where the image's own directory is.
        assert (await sh(clone, "cat /app/README.md; ls /app; ls /usr/bin")).startswith("here\nREADME.md\nls:")
        # The fleet's own git and Python are there for it, whatever the image has.
        assert await sh(clone, "git log --format=%s") == "First commit"
        argv = (*python(clone.environment), "-I", "-c", "import hashlib, json, socket, sys; print(sys.prefix)")
        assert (await clone.run(Command(argv=argv))).stdout.text().strip() == "/run/fleet/own"
        # Nothing of the host is in it: neither its programs nor its files.
        assert await sh(clone, "ls /etc; ls /usr; ls -A /run") == "hosts\npasswd\nshare\nfleet"


async def test_two_workspaces_share_a_root_that_neither_can_write_to(world: World, image: MadeImage) -> None:
    name = image.archive(world.place / "default/image.tar")
    async with world.clone("one", name) as one, world.clone("two", name) as two:
        assert one.environment.image == two.environment.image
        assert one.environment.image is not None
        root = Path(one.environment.image.path)
        before = _state(root)
        spoil = (
            "echo bad >/usr/share/there; rm -r /etc; mv /bin/cat /bin/dog; ln -s /usr /srv; echo x >/new; mkdir /bin/x;"
            "echo x >/run/fleet/own/sh; echo x >/run/fleet/own/lib/libc.so.6; mv /run /run2; mv /home /away"
        )
        await sh(one, spoil)
        # What it changed is there for its later commands, in whatever session they run.
        assert await sh(one, "dog /usr/share/there; ls -d /etc /run/fleet/own/sh 2>&1") == (
            "bad\nls: cannot access '/etc': No such file or directory\n/run/fleet/own/sh"
        )
        await one.run(Command(argv=("sh", "-c", "while :; do :; done"), timeout_seconds=0.2))
        assert await sh(one, "dog /new") == "x"
        assert await sh(two, "cat /usr/share/there; echo; ls /new /srv 2>&1 | cat") == (
            "of the image\nls: cannot access '/new': No such file or directory\n"
            "ls: cannot access '/srv': No such file or directory"
        )
        assert _state(root) == before
        # A third one finds the same.
        async with world.clone("three", name) as three:
            assert await sh(three, "cat /usr/share/there") == "of the image"
    assert _state(root) == before


async def test_no_mount_point_is_made_where_a_link_leads(world: World, image: MadeImage, tmp_path: Path) -> None:
    """A link of the image, or of a command, that would have the next session's mount points made on the host."""
    name = image.layout(world.place / "default/layout")
    outside = f"/oldroot{tmp_path}/outside"
    async with world.clone("one", name) as clone:
        # Its own home is a mount point inside: the directory around it can be moved away by its copy alone.
        await sh(clone, f"mv /home /away; ln -s {outside} /home/x")
        await clone.run(Command(argv=("sh", "-c", "while :; do :; done"), timeout_seconds=0.2))
        assert await sh(clone, "echo still here") == "still here"
    hostile = replace(image, layers=[*image.layers, layer(link("home", outside))])
    with pytest.raises(PreconditionFailed, match="/home is a link"):
        await world.environment(hostile.layout(world.place / "default/layout", "hostile"))
    assert not (tmp_path / "outside").exists()


async def test_an_image_is_unpacked_once_and_goes_when_nobody_has_used_it_for_long(
    world: World, image: MadeImage
) -> None:
    name = image.layout(world.place / "default/layout")
    pinned = await world.provider.pin_image("default", EnvironmentSpec(image=name))
    assert pinned.image.startswith(f"{name}@sha256:")
    async with world.clone("one", pinned.image) as clone:
        assert clone.environment.image is not None
        root = Path(clone.environment.image.path)
        assert clone.environment.image.digest == image.digest
        assert f"all of it is in the image {pinned.image} ({image.digest})" in [
            decision.what for decision in clone.environment.report.decisions
        ]
    before = root.stat().st_ino
    # The tag means another image now; what was pinned is had from this node, also when its source is gone.
    other = replace(image, config={"Env": ["OTHER=1"]})
    shutil.rmtree(world.place / "default/layout")
    other.layout(world.place / "default/layout")
    async with world.clone("two", pinned.image) as clone:
        assert await sh(clone, "echo $COLOUR") == "green"
    assert root.stat().st_ino == before
    assert (await world.environment(name)).image != clone.environment.image
    # Another tenant has to ask where it is.
    repository = replace(await world.pinned(), tenant="stranger")
    with pytest.raises(InvalidRequest, match="in no folder of images"):
        await world.provider.environment(repository, EnvironmentSpec(image=pinned.image))
    await world.provider.release("execution")
    long_ago = time.time() - 40 * 86_400
    os.utime(root.parent, (long_ago, long_ago))
    assert (await world.provider.reap()).images == 1
    assert not root.exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("python:3.12", "images of docker.io/library/python are not accepted"),
        ("docker-archive:/etc/passwd", "in no folder of images"),
        ("oci:/{default}/../stranger/layout", "in no folder of images"),
        ("http://registry.example.org/image", "names no image"),
        ("-v /:/host", "names no image"),
    ],
)
async def test_only_what_the_operator_allows_is_looked_at(world: World, name: str, reason: str) -> None:
    (world.place / "stranger").mkdir()
    name = name.replace("/{default}", str(world.place / "default"))
    with pytest.raises((InvalidRequest, PreconditionFailed), match=reason) as refused:
        await world.environment(name)
    assert refused.value.field == "environment.container_image"


def _state(root: Path) -> dict[str, tuple[int, bytes]]:
    """Each file with its mode and content, each link with its target."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (status.st_mode, content)
    return found
