"""Container images made here: layers of entries, as an OCI layout, a docker archive, or of this machine's programs."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def entry(
    name: str, text: str | bytes = b"", *, kind: bytes = tarfile.REGTYPE, **facts: object
) -> tuple[tarfile.TarInfo, bytes]:
    """An entry of a layer; `facts` are attributes of its header."""
    info = tarfile.TarInfo(name)
    data = text.encode() if isinstance(text, str) else text
    info.type, info.size, info.mode = kind, len(data), 0o755
    for attribute, value in facts.items():
        setattr(info, attribute, value)
    return info, data


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.DIRTYPE)


def link(name: str, target: str, *, hard: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.LNKTYPE if hard else tarfile.SYMTYPE, linkname=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class MadeImage:
    """An image: its layers without compression, and the `config` of its configuration."""

    layers: Sequence[bytes]
    config: Mapping[str, object] = field(default_factory=dict[str, object])
    architecture: str = MACHINE

    @property
    def configuration(self) -> bytes:
        told = {
            "os": "linux",
            "architecture": self.architecture,
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": [digest_of(data) for data in self.layers]},
        }
        return json.dumps(told).encode()

    @property
    def digest(self) -> str:
        return digest_of(self.configuration)

    def layout(self, place: Path, tag: str = "latest") -> str:
        """Write it into an OCI layout, and give the name by which it is asked for."""
        blobs = place / "blobs/sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        manifest, parts = self.manifest()
        for data in (manifest, *parts):
            (blobs / digest_of(data).partition(":")[2]).write_bytes(data)
        index = json.loads((place / "index.json").read_text()) if (place / "index.json").exists() else {"manifests": []}
        annotations = {"org.opencontainers.image.ref.name": tag}
        index["manifests"].append({"digest": digest_of(manifest), "size": len(manifest), "annotations": annotations})
        (place / "index.json").write_text(json.dumps(index))
        return f"oci:{place}:{tag}"

    def manifest(self) -> tuple[bytes, list[bytes]]:
        """The manifest, and the blobs that it names."""
        packed = [gzip.compress(data, 1, mtime=0) for data in self.layers]
        layers = [{"digest": digest_of(data), "size": len(data)} for data in packed]
        config = {"digest": self.digest, "size": len(self.configuration)}
        return json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode(), [
            self.configuration,
            *packed,
        ]

    def archive(self, place: Path, tag: str = "made:latest") -> str:
        """Write a docker archive, and give the name by which it is asked for."""
        names = [f"{number}/layer.tar" for number in range(len(self.layers))]
        told = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
        entries = [entry(name, data) for name, data in zip(names, self.layers, strict=True)]
        entries += [entry("config.json", self.configuration), entry("manifest.json", json.dumps(told))]
        place.write_bytes(layer(*entries))
        return f"docker-archive:{place}"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", listed)


def of_this_machine(*programs: str, files: Iterable[tuple[tarfile.TarInfo, bytes]] = ()) -> bytes:
    """A layer with `/bin/sh`, some programs of this machine, and the libraries that they need."""
    entries = {"tmp": directory("tmp"), "etc": directory("etc"), "bin": directory("bin")}
    shell = os.path.realpath(shutil.which("dash") or "/bin/sh")
    for name in ("sh", *programs):
        path = shell if name == "sh" else os.path.realpath(shutil.which(name) or name)
        entries[f"bin/{name}"] = entry(f"bin/{name}", Path(path).read_bytes())
        for library in _libraries(path):
            entries[library[1:]] = entry(library[1:], Path(library).read_bytes())
    accounts = "root:x:0:0::/root:/bin/sh\nbob:x:1234:2345::/home/bob:/bin/sh\n"
    entries["etc/passwd"] = entry("etc/passwd", accounts, mode=0o644)
    return layer(*entries.values(), *files)


_LEFT_OUT = frozenset({"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "__pycache__", "site-packages"})
_PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")


def with_python() -> MadeImage:
    """An image of two layers: programs of this machine, and its Python with pytest, at its own place and on PATH."""
    prefix = Path(sys.base_prefix)
    library = prefix / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    program = os.path.realpath(prefix / "bin/python3")
    files: list[tuple[tarfile.TarInfo, bytes]] = [entry("etc/made", "of the test\n", mode=0o644)]
    packages = Path(pytest.__file__).parents[1]
    for root, place in ((library, library), *((packages / name, library / "site-packages" / name) for name in _PYTEST)):
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and _LEFT_OUT.isdisjoint(inside.parts) and path.suffix not in (".a", ".o"):
                files.append(entry(str(place / inside)[1:], path.read_bytes()))
    files.append(entry(str(library / "site-packages/py.py")[1:], (packages / "py.py").read_bytes()))
    modules = [str(path) for path in (library / "lib-dynload").glob("*.so")]
    shared = sorted({Path(path) for name in (program, *modules) for path in _libraries(name)})
    files += [entry(str(path)[1:], path.read_bytes()) for path in shared]
    files += [
        entry("opt/bin/python3", Path(program).read_bytes()),
        link(f"{str(prefix)[1:]}/bin/python3", "/opt/bin/python3"),
    ]
    config = {"WorkingDir": "/testbed", "Env": [f"PATH={prefix}/bin:/bin", "LANG=C.UTF-8"]}
    return MadeImage(
        layers=[of_this_machine("cat", "chmod", "ln", "ls", "mkdir", "rm", "env", "cp"), layer(*files)], config=config
    )
