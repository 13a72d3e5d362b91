"""The shared tier: an object store that the daemons of several machines read from and write to.

    cas/v1/<first two hex>/<digest>               an artifact; immutable, verified by its name
    recipes/v1/<digest>.json                      a recipe's name and readable parts
    manifests/v1/<recipe>/<scope>/<random>.json   rows: an artifact's digest, size, items, cost

tier.py fetches and copies artifacts, manifests.py says which there are, bucket.py alone talks to the object
store. upstream.py leases what the bucket lacks from a lead daemon, so that one machine makes it.

Invariants:
    1. "Absent" and "could not tell" differ: any failure but a missing object is counted, pauses the tier for
       a short time, and is never taken for a miss.
    2. What comes from the bucket is not trusted: manifests are bounded and checked, and an artifact's bytes
       must have the digest that names them before the store sees them.
    3. A manifest is the union of its objects. An object is deleted only after another one that has all its
       rows was written, so concurrent writers and compactions lose nothing.
    4. Nothing here stops a job: what cannot be fetched in about the time that it took to make is left to
       jobs, and a bucket that fails once is left alone, with all that waits for it.
"""
