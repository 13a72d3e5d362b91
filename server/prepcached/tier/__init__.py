"""The shared tier: an object store that the daemons of several machines read from and write to.

    cas/v1/<first two hex>/<digest>               an artifact; immutable, verified by its name
    recipes/v1/<digest>.json                      a recipe's name and readable parts
    manifests/v1/<recipe>/<scope>/<random>.json   rows: an artifact's digest, size, items, cost

Invariants:
    1. A failure pauses the tier, and is never taken for a miss. Nothing here stops a job.
    2. An artifact's bytes must have the digest that names them.
    3. An object of a manifest is deleted only after another one that has all its rows was written.
"""
