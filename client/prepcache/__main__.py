"""The `prepcache` command, also as `python -m prepcache`, where its folder is not on the path."""

from __future__ import annotations

import sys


def main() -> None:
    try:  # loading it takes half a second
        from prepcache.command import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
