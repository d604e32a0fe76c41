#!/bin/sh
# bubblewrap (the sandbox) and ripgrep (search): installed where that is allowed, else the missing command is printed.
set -eu
missing=""
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v rg >/dev/null 2>&1 || missing="$missing ripgrep"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # shellcheck disable=SC2086  # a list of package names
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
        >/dev/null && exit 0
fi
echo "Missing:$missing. Install with your package manager, for instance: sudo apt-get install -y$missing" >&2
