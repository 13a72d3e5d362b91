"""Daemon: the session with it, its HTTP, how long a job waits for it, and starting it on demand."""
