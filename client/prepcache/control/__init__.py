"""Control: the client's session with the daemon, and the daemon on demand."""
