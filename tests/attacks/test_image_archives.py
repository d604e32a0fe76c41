"""Archives of container images that would get out of their root, or fill the node: refused, or taken without harm."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import ImageLimits, ImageRules, ImageStore, TenantDisk
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed, ResourceExhausted
from tests.container_images import MadeImage, directory, entry, layer, link
from tests.tables import table

LIMITS = ImageLimits(compressed_bytes=4 * 1024**2, unpacked_bytes=80 * 1024**2, entries=200, ratio=50)


def store_at(place: Path) -> ImageStore:
    (place / "images").mkdir(exist_ok=True)
    (place / "outside").mkdir(exist_ok=True)
    (place / "outside/file").write_text("kept")
    rules = ImageRules(folders=(place / "images",), limits=LIMITS)
    return ImageStore(place / "home", rules, TenantDisk(home=place / "home", max_bytes=0, unmeasured_bytes=0))


async def unpacked(place: Path, *layers: bytes) -> Path:
    name = MadeImage(layers=layers).layout(place / "images/layout")
    return Path((await store_at(place).root("default", name)).path)


def bomb(*, header: bytes = b"") -> bytes:
    info, _ = entry("zeros")
    info.size = 70 * 1024**2
    return header + info.tobuf() + bytes(info.size) + bytes(1024)


def extended(size: int) -> bytes:
    info, _ = entry("x", kind=tarfile.XHDTYPE)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT) + bytes(min(size, 4096))


REFUSED: dict[str, tuple[Sequence[bytes], type[FleetError], str]] = {
    "an absolute path": ([layer(entry("/etc/passwd", "x"))], PreconditionFailed, "leads out of it"),
    "a path that climbs": ([layer(entry("a/../../outside/file", "x"))], PreconditionFailed, "leads out of it"),
    "a hard link to nothing": ([layer(link("a", "b/c", hard=True))], PreconditionFailed, "does not have"),
    "a write through a link": (
        [layer(link("a", "../../../../outside"), entry("a/file", "x"))],
        PreconditionFailed,
        "writes through 'a'",
    ),
    "a write through a link of a lower layer": (
        [layer(directory("a")), layer(link("a", "/outside")), layer(entry("a/file", "x"))],
        PreconditionFailed,
        "writes through 'a'",
    ),
    "a hard link through a link": (
        [layer(link("a", "../../../../outside"), link("b", "a/file", hard=True))],
        PreconditionFailed,
        "writes through 'a'",
    ),
    "a whiteout through a link": (
        [layer(link("a", "../../../../outside")), layer(entry("a/.wh.file"))],
        PreconditionFailed,
        "writes through 'a'",
    ),
    "a whiteout of the directory above": ([layer(entry(".wh..."))], PreconditionFailed, "no file of it"),
    "a sparse file": ([layer(entry("a", kind=tarfile.GNUTYPE_SPARSE))], PreconditionFailed, "cannot be read|of a kind"),
    "a path of very many directories": ([layer(entry("/".join(["a"] * 150)))], PreconditionFailed, "150 directories"),
    "many entries": ([layer(*(entry(f"a{number}") for number in range(201)))], ResourceExhausted, "200 entries"),
    "zeros that compress well": ([bomb()], ResourceExhausted, "50 times its size"),
    "more than may be": ([os.urandom(512) + bomb(), bomb()], PreconditionFailed, "cannot be read"),
    "an extended header of a gigabyte": ([extended(1024**3)], PreconditionFailed, "no size that it can have"),
    "extended headers in a row": ([extended(512) * 2000], PreconditionFailed, "cannot be read"),
    "an archive that ends too early": ([layer(entry("a", "x" * 2000))[:600]], PreconditionFailed, "cannot be read"),
    "a target that no link can have": ([layer(link("a", ""))], PreconditionFailed, "without a target"),
}


@table("name", REFUSED)
async def test_a_layer_that_no_image_may_have_is_refused(tmp_path: Path, name: str) -> None:
    layers, kind, reason = REFUSED[name]
    (place := tmp_path / name.replace(" ", "-")).mkdir()
    with pytest.raises(kind, match=reason):
        await unpacked(place, *layers)
    assert (place / "outside/file").read_text() == "kept"
    assert os.listdir(place / "outside") == ["file"]
    # Nothing half unpacked stays, neither as an image nor beside it.
    assert [path for path in (place / "home").rglob("*") if path.is_dir() and path.parts[-1] not in KNOWN] == []


KNOWN = ("images", "scratch", "granted", "default", "held")


async def test_what_an_image_may_have_is_taken_without_what_it_could_do_outside(tmp_path: Path) -> None:
    below = layer(
        directory("a"), entry("a/old", "old"), entry("a/stays", "lower"), directory("b"), entry("b/one"),
        entry("b/two"), directory("d"), entry("d/file", "lower"),
    )  # fmt: skip
    above = layer(
        entry("dev/sda", kind=tarfile.BLKTYPE, devmajor=8), entry("dev/pipe", kind=tarfile.FIFOTYPE),
        entry("bin/su", "x", mode=0o6755, uid=0, uname="root"), entry("locked", "x", mode=0),
        link("etc", "../../../../outside"), link("bin/again", "bin/su", hard=True),
        # Marks may stand before or behind what they are about.
        entry("a/new", "new"), entry("a/.wh.old"), entry("a/.wh.gone"), entry("b/.wh..wh..opq"), entry("b/three"),
        link("d", "../../../../outside"), entry(".wh..wh.plnk"), entry("stamped", "x", mtime=10**12),
        entry("./dotted//name", "x"),
    )  # fmt: skip
    root = await unpacked(tmp_path, below, above)
    assert sorted(os.listdir(root / "a")) == ["new", "stays"]
    assert os.listdir(root / "b") == ["three"]
    assert os.readlink(root / "d") == os.readlink(root / "etc") == "../../../../outside"
    assert not (root / "dev").exists()
    status = (root / "bin/su").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o755, os.geteuid(), 2)
    assert (root / "locked").read_text() == (root / "dotted/name").read_text() == "x"
    assert os.listdir(tmp_path / "outside") == ["file"]
    assert not (root / ".wh..wh.plnk").exists()


def _other_blob(place: Path, image: MadeImage) -> None:
    """Another content under the digest of the first layer."""
    _, (_, packed) = image.manifest()
    name = hashlib.sha256(packed).hexdigest()
    (place / f"blobs/sha256/{name}").write_bytes(gzip.compress(layer(entry("other"))))


def _large_manifest(place: Path, image: MadeImage) -> None:
    data = json.dumps({"manifests": [], "padding": " " * 5 * 1024**2}).encode()
    (place / "index.json").write_bytes(data)


def _outside_link(place: Path, image: MadeImage) -> None:
    (place / "index.json").rename(place.parent.parent / "index.json")
    (place / "index.json").symlink_to(place.parent.parent / "index.json")


def _many_layers(place: Path, image: MadeImage) -> None:
    replace(image, layers=[b""] * 300).layout(place, "latest")
    index = json.loads((place / "index.json").read_text())
    index["manifests"] = index["manifests"][1:]
    (place / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_other_blob, "another digest"),
        (_large_manifest, "more than 4,194,304 bytes"),
        (_outside_link, "no file there"),
        (_many_layers, "300 layers"),
    ],
)
async def test_a_layout_that_is_not_what_its_digests_say_is_refused(
    tmp_path: Path, spoil: Callable[[Path, MadeImage], None], reason: str
) -> None:
    store, image = store_at(tmp_path), MadeImage(layers=[layer(entry("a", "x" * 100))])
    name = image.layout(tmp_path / "images/layout")
    spoil(tmp_path / "images/layout", image)
    with pytest.raises(PreconditionFailed, match=reason):
        await store.root("default", name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "pdp11"}, "linux/pdp11"),
        ({"config": {"User": "4294967295"}}, "not among its accounts"),
    ],
)
async def test_a_configuration_that_cannot_be_honoured_is_refused(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    image = replace(MadeImage(layers=[layer(entry("a"))]), **change)  # type: ignore[arg-type]
    name = image.archive(tmp_path / "images.tar")
    (tmp_path / "images").mkdir()
    (tmp_path / "images.tar").rename(tmp_path / "images/made.tar")
    with pytest.raises(PreconditionFailed, match=reason):
        await store_at(tmp_path).root("default", name.replace("images.tar", "images/made.tar"))
