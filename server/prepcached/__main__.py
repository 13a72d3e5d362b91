"""The `prepcached` command, also as `python -m prepcached`."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130  # 128 + SIGINT, as a shell says it


def main() -> None:
    """Runs the command; Ctrl-C ends it with one line, also while it loads its libraries."""
    if sys.argv[1:2] == ["serve"]:  # SIGHUP would end the start; it waits for the loop, which reloads then
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from prepcached import cli

        cli.main()
    except KeyboardInterrupt:
        print("prepcached: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
