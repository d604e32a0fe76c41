"""No secret is in the tree: every tracked file through detect-secrets' rules for keys, tokens and passwords in URLs.

What the rules find and is none (a test's own made-up key) is listed in `scripts/known_secrets.json`, by file and hash:
write it anew with `--write`, and read what it adds. The rules that guess by entropy and by names are left out: in a
tree about secrets they find little else than tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from detect_secrets import SecretsCollection
from detect_secrets.settings import get_plugins, transient_settings

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "scripts/known_secrets.json"
# What others made: hashes of packages, generated code, a built page.
PASSED_OVER = (
    *("requirements.lock", "web/package-lock.json", "src/fleet/", "services/gateway/page/"),
    *("docs/openapi.json", "docs/plots/", "services/gateway/rest/comments.json"),
)
RULES = (
    "ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "CloudantDetector",
    "DiscordBotTokenDetector", "GitHubTokenDetector", "GitLabTokenDetector", "JwtTokenDetector", "MailchimpDetector",
    "NpmDetector", "OpenAIDetector", "PrivateKeyDetector", "PypiTokenDetector", "SendGridDetector", "SlackDetector",
    "SquareOAuthDetector", "StripeDetector", "TelegramBotTokenDetector", "TwilioKeyDetector",
)  # fmt: skip


def found() -> dict[str, list[str]]:
    """By file, what looks like a secret: the rule and a hash of the value, never the value."""
    told = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    files = [name for name in told.split("\0") if name and not name.startswith(PASSED_OVER)]
    secrets = SecretsCollection(root=str(ROOT))
    with transient_settings({"plugins_used": [{"name": name} for name in RULES]}):
        # Line by line takes half a minute: only where a rule finds something in the whole.
        rules = [rule for plugin in get_plugins() for rule in cast("Any", plugin).denylist]
        secrets.scan_files(*(name for name in files if _worth_a_look(ROOT / name, rules)))
    listed: dict[str, list[str]] = {}
    for name, secret in sorted(secrets, key=lambda pair: (pair[0], pair[1].secret_hash)):
        listed.setdefault(name, []).append(f"{secret.type} {secret.secret_hash}")
    return {name: sorted(set(those)) for name, those in listed.items()}


def _worth_a_look(path: Path, rules: list[re.Pattern[str]]) -> bool:
    if not path.is_file():
        return False
    text = path.read_bytes().decode("utf-8", "replace")
    return any(rule.search(text) for rule in rules)


def main() -> int:
    """Compare, or with `--write` record. Returns the exit code."""
    now = found()
    if "--write" in sys.argv[1:]:
        KNOWN.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    known: dict[str, list[str]] = json.loads(KNOWN.read_text())
    new = [f"{name}: {one}" for name, those in now.items() for one in those if one not in known.get(name, ())]
    if new:
        print("these look like secrets; take them out, or run scripts/check_secrets.py --write if they are none:")
        print("\n".join(new))
    return 1 if new else 0


if __name__ == "__main__":
    raise SystemExit(main())
