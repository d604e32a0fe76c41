# fleet-agent: what agents run in, as Kubernetes Jobs and as Ray workers.
#
#   docker build -f workers/agent.Dockerfile -t fleet-agent:VERSION .
#
# BASE_IMAGE is what runs, BUILD_IMAGE what installs: a site with an index of its own puts a pip.conf into the latter, and
# nothing of it gets into the image. More in docs/images.md.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm
ARG BUILD_IMAGE=${BASE_IMAGE}

# Third-party packages, by the lock's hashes. Its layer changes with the lock only.
FROM ${BUILD_IMAGE} AS dependencies
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY pyproject.toml requirements.lock scripts/image_requirements.py ./
ARG EXTRAS="db,docker"
ARG WITHOUT=""
RUN set -eu; \
    python3 image_requirements.py --build-system --also setuptools > build.txt; \
    python3 image_requirements.py --extras "${EXTRAS}" --without "${WITHOUT}" > runtime.txt; \
    python3 -m venv --without-pip /opt/build; \
    python3 -m pip --python /opt/build/bin/python install --quiet --require-hashes --no-deps -r build.txt; \
    python3 -m pip --python /opt/build/bin/python wheel --quiet --require-hashes --no-deps --no-build-isolation \
        --wheel-dir wheels -r runtime.txt; \
    python3 -m venv --without-pip /opt/fleet; \
    python3 -m pip --python /opt/fleet/bin/python install --quiet --no-index --no-deps --no-compile wheels/*; \
    rm -r wheels; \
    packages="$(/opt/fleet/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
    rm -rf "${packages}/ray/jars"; \
    echo /opt/swe-ai-fleet > "${packages}/swe-ai-fleet.pth"; \
    /opt/fleet/bin/python -m compileall -q --invalidation-mode unchecked-hash "${packages}" || true

# Our own wheel, built by what the lock says builds it.
FROM dependencies AS application
COPY README.md LICENSE ./
COPY src src
COPY services services
COPY workers workers
RUN set -eu; \
    python3 -m pip --python /opt/build/bin/python wheel --quiet --no-index --no-deps --no-build-isolation \
        --wheel-dir dist .; \
    python3 -m pip --python /opt/fleet/bin/python install --quiet --no-index --no-deps --no-compile \
        --target /opt/swe-ai-fleet dist/*.whl; \
    /opt/fleet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/swe-ai-fleet

FROM ${BASE_IMAGE}
# What the base has is not installed again, so that a base that has all of it needs no package mirror.
ARG PACKAGES="git rg:ripgrep bwrap:bubblewrap tini"
RUN set -eu; missing=""; \
    for one in ${PACKAGES}; do \
        command -v "${one%%:*}" > /dev/null || missing="${missing} ${one#*:}"; \
    done; \
    if [ -n "${missing}" ]; then \
        apt-get update -qq; \
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${missing}; \
        rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log; \
    fi; \
    groupadd --gid 10001 fleet; \
    useradd --uid 10001 --gid 10001 --no-log-init --home-dir /var/lib/fleet --shell /usr/sbin/nologin fleet; \
    install -d -o 10001 -g 10001 -m 0700 /var/lib/fleet /workspace
COPY --from=application /opt/fleet /opt/fleet
COPY --from=application /opt/swe-ai-fleet /opt/swe-ai-fleet
ENV PATH=/opt/fleet/bin:/opt/swe-ai-fleet/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/var/lib/fleet FLEET_HOME=/var/lib/fleet \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="fleet-agent" \
      org.opencontainers.image.description="SWE AI Fleet: agents in Jobs and on Ray" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
WORKDIR /workspace
# tini passes SIGTERM on, which drains, and reaps what grandchildren leave.
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "workers.agent"]
