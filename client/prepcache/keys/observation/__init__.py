"""What a function reads beside its item, seen while it runs: files, folders, modules, questions."""
