#!/bin/sh
# Inside a build of deploy/Dockerfile: install the programs that are named, `command` or `command:package`, where they are missing.
set -eu
missing=""
for program in "$@"; do
    command -v "${program%%:*}" > /dev/null || missing="$missing ${program#*:}"
done
if [ -n "$missing" ]; then
    apt-get update -qq
    # shellcheck disable=SC2086 -- names of packages, apart
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
fi
