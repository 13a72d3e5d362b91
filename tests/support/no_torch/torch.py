"""Stands before torch on the path of jobs that are not about torch: to load it takes two seconds of work."""

raise ImportError("this job is run as if torch were not installed")
