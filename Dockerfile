# The daemon alone: no torch, no root. See deploy/README.md for the two volumes that jobs share with it.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY client client
COPY server server
RUN python3 -m venv /opt/prepcache \
 && /opt/prepcache/bin/python -m pip install --no-cache-dir --constraint constraints.txt ".[server]"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/prepcache /opt/prepcache
RUN groupadd --gid 10001 prepcache \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/cache/prepcache prepcache \
 && install -d -o prepcache -g prepcache -m 0750 /var/cache/prepcache \
 && install -d -o prepcache -g prepcache -m 0755 /run/prepcache
ENV PATH=/opt/prepcache/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PREPCACHED_ROOT=/var/cache/prepcache \
    PREPCACHED_UDS=/run/prepcache/prepcached.sock \
    PREPCACHE_URL=unix:///run/prepcache/prepcached.sock
USER 10001:10001
VOLUME ["/var/cache/prepcache", "/run/prepcache"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD ["prepcache", "status"]
ENTRYPOINT ["prepcached"]
CMD ["serve"]
