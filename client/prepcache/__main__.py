"""The `prepcache` command as `python -m prepcache`, where its folder is not on the path."""

from __future__ import annotations

from prepcache.command.cli import main

if __name__ == "__main__":
    main()
