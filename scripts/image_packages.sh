#!/bin/sh
# Inside a build of deploy/Dockerfile: install the lock's packages, less those WITHOUT, with those of EXTRAS, into /opt/fleet.
set -eu
python3 image_requirements.py --extras "$EXTRAS" --without "$WITHOUT" > runtime.txt
python3 -m pip --python /opt/build/bin/python wheel --quiet --require-hashes --no-deps --no-build-isolation \
    --wheel-dir wheels -r runtime.txt
python3 -m venv --without-pip /opt/fleet
python3 -m pip --python /opt/fleet/bin/python install --quiet --no-index --no-deps --no-compile wheels/*
rm -r wheels
packages="$(/opt/fleet/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
rm -rf "$packages/ray/jars"
echo /opt/swe-ai-fleet > "$packages/swe-ai-fleet.pth"
/opt/fleet/bin/python -m compileall -q --invalidation-mode unchecked-hash "$packages" || true
