"""The bill of materials of what is installed from `requirements.lock` and `web/package-lock.json`: CycloneDX, as JSON.

python scripts/bill_of_materials.py sbom.json [LISTED]

LISTED has the system packages of an image, as docs/images.md says how to list them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)", re.M)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_LONGEST_LICENSE = 100


def python_packages() -> Iterator[Component]:
    """Each pinned package with the hashes that it may have and the license that it names."""
    for entry in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / "requirements.lock").read_text()):
        found = _PINNED.match(entry)
        if found is None:
            continue
        name, version = found.groups()
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            bom_ref=f"pypi:{name}@{version}",
            purl=PackageURL("pypi", name=name, version=version),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in _HASH.findall(entry)],
            licenses=[LicenseFactory().make_from_string(one) for one in _license(name)],
        )


def page_packages() -> Iterator[Component]:
    """What the page is built from and with."""
    packages = json.loads((ROOT / "web/package-lock.json").read_text())["packages"]
    for place, told in packages.items():
        name = place.rpartition("node_modules/")[2]
        if not place or "version" not in told:
            continue
        scope, _, own = name.rpartition("/")
        yield Component(
            type=ComponentType.LIBRARY,
            group=scope or None,
            name=own,
            version=told["version"],
            bom_ref=f"npm:{place}@{told['version']}",
            purl=PackageURL("npm", namespace=scope or None, name=own, version=told["version"]),
            licenses=[LicenseFactory().make_from_string(told["license"])] if told.get("license") else (),
        )


def system_packages(listed: str) -> Iterator[Component]:
    """The packages of Debian that an image lists, a line each: name, version, architecture."""
    for line in listed.splitlines():
        name, version, architecture = line.split()
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            bom_ref=f"deb:{name}:{architecture}@{version}",
            purl=PackageURL("deb", namespace="debian", name=name, version=version, qualifiers={"arch": architecture}),
        )


def _license(name: str) -> list[str]:
    """What the installed package says of its license; nothing where it is not installed or says nothing short."""
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    said = told.get("License-Expression") or told.get("License") or ""
    if not said or "\n" in said or len(said) > _LONGEST_LICENSE:
        classified = [one for one in told.get_all("Classifier") or [] if one.startswith("License ::")]
        said = " AND ".join(one.rpartition(" :: ")[2] for one in classified)
    return [said] if said else []


def main(target: Path, listed: Path | None = None) -> None:
    """Write the bill of materials."""
    system = system_packages(listed.read_text()) if listed else ()
    bom = Bom(components=[*python_packages(), *page_packages(), *system])
    bom.metadata.component = Component(
        type=ComponentType.APPLICATION, name="swe-ai-fleet", version=metadata.version("swe-ai-fleet"), bom_ref="self"
    )
    bom.register_dependency(bom.metadata.component, bom.components)
    target.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")
    print(f"{len(bom.components)} components in {target}")


if __name__ == "__main__":
    main(*(Path(name) for name in sys.argv[1:3] or ["sbom.json"]))
