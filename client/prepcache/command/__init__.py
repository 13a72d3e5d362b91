"""The `prepcache` command."""
