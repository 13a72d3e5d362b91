# The daemon alone: no torch, no root. See deploy/README.md for the two volumes that jobs share with it.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY client client
COPY server server
RUN python3 -m venv /opt/prepcache \
 && /opt/prepcache/bin/python -m pip install --no-cache-dir --constraint constraints.txt ".[server,fleet]"

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
# Plain sockets, without site-packages: `prepcache status` takes seconds on a busy machine.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["python3", "-ISc", "\
import os, socket; s = socket.socket(socket.AF_UNIX); s.settimeout(8); s.connect(os.environ['PREPCACHED_UDS']); \
s.sendall(b'GET /healthz HTTP/1.0\\r\\n\\r\\n'); raise SystemExit(b' 200 ' not in s.recv(64))"]
ENTRYPOINT ["prepcached"]
CMD ["serve"]
