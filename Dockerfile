# Headwater's image; docs/deploy.md says how to build and run it.
#
# BASE         any image with Python 3.11 or later, pip and venv
# TORCH_BUILD  which build of torch: `cpu`, `cu130`, ...; empty takes what the index has without a suffix
# PIP_ARGS     where pip finds packages, torch's build above all; what is secret about that goes into the secret `pip.conf`
# MODEL        a directory of the build's context to bake in as /model
ARG BASE=python:3.11-slim

# An environment with torch alone: the largest layer by far, and the one that changes least.
FROM ${BASE} AS torch
ARG TORCH_BUILD=cpu
ARG PIP_ARGS=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY constraints.txt deploy/image/prune.py ./
# hadolint ignore=SC2086
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m venv --without-pip /opt/headwater \
    && wanted="$(grep -m1 '^torch==' constraints.txt)${TORCH_BUILD:++$TORCH_BUILD}" \
    && { python -m pip --python /opt/headwater/bin/python install ${PIP_ARGS} -c constraints.txt "$wanted" \
         || { echo "pip finds no $wanted: say where it is with PIP_ARGS, or which build with TORCH_BUILD" >&2; exit 1; }; } \
    && find /opt/headwater/bin -type f -delete \
    && python prune.py /opt/headwater

# What else the service imports, below /libraries. The environment has no pip of its own, so none has to go again.
FROM torch AS libraries
ARG PIP_ARGS=
COPY pyproject.toml deploy/image/requirements.py ./
# hadolint ignore=SC2086
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python requirements.py otel > requirements.txt \
    && python -m pip --python /opt/headwater/bin/python install ${PIP_ARGS} -c constraints.txt \
         --root /libraries -r requirements.txt \
    && rm -r /libraries/opt/headwater/bin \
    && python prune.py /libraries

# The service itself, below /package: a new version of it is a layer of a megabyte.
FROM libraries AS package
ARG PIP_ARGS=
COPY README.md ./
COPY model/ model/
COPY service/ service/
COPY viewer/ viewer/
# hadolint ignore=SC2086
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m pip --python /opt/headwater/bin/python install ${PIP_ARGS} --no-deps --root /package .

FROM ${BASE}
ARG BASE
ARG MODEL=deploy/image/no-model
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="headwater" \
      org.opencontainers.image.description="Serves a transformer's insides over HTTP: the output of any layer and the attention map of any head." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}"
COPY --from=torch /opt/headwater /opt/headwater
COPY --from=libraries /libraries/ /
COPY --from=package /package/ /
COPY --chmod=755 deploy/image/healthcheck.py /opt/headwater/bin/healthcheck.py
COPY --chmod=755 ${MODEL} /model
# Any user may run it, and nothing is written but below /tmp. Nothing is fetched at the start.
ENV PATH=/opt/headwater/bin:$PATH \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/.cache \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1 \
    HEADWATER_CACHE_DIR=/tmp/headwater \
    HEADWATER_HOST=0.0.0.0 \
    HEADWATER_PORT=8000 \
    HEADWATER_MODEL=/model
EXPOSE 8000
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "/opt/headwater/bin/healthcheck.py"]
ENTRYPOINT ["headwater"]
CMD ["serve"]
