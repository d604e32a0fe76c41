#!/bin/sh
# bubblewrap (the sandbox) and ripgrep (search) are needed, chromium is for the tests of the page: installed where that
# is allowed, else what is missing is printed. Arguments are further programs, as PROGRAM:PACKAGE, that may be missing.
set -eu
install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null
}
missing=""
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v rg >/dev/null 2>&1 || missing="$missing ripgrep"
# shellcheck disable=SC2086  # a list of package names
if [ -n "$missing" ] && ! install $missing; then
    echo "Missing:$missing. Install with your package manager, for instance: sudo apt-get install -y$missing" >&2
    exit 1
fi
if ! command -v chromium >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1 && ! install chromium; then
    echo "No chromium here: the tests of the page are skipped. For instance: sudo apt-get install -y chromium" >&2
fi
for wanted in "$@"; do
    # The sandbox sees what is below /usr, and no installation of a user's own.
    if [ ! -e "/usr/bin/${wanted%%:*}" ] && ! install "${wanted#*:}"; then
        echo "No ${wanted%%:*} in /usr/bin. For instance: sudo apt-get install -y ${wanted#*:}" >&2
    fi
done
