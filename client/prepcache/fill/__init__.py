"""Fill: the making of missing samples, together with every other job that wants the same."""
