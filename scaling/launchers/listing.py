"""List what a sharded program sends at a mesh, in a worker process of its own."""

from __future__ import annotations

from scaling.errors import InputError
from scaling.launchers.answer import TooLongError, answer
from scaling.spec.listing import Listed, Listing

LIMIT_S = 600
"""Time limit of a listing, which runs two steps of the smallest batch on the CPU."""


def listing(asked: Listing) -> Listed:
    """torch's own list. InputError where the program fails or takes too long, ScalingError where nothing answers."""
    what = f"the list of collectives over {asked.mesh.size} ranks"
    try:
        found = answer("scaling.worker.listing", asked, Listed, what=what, limit_s=LIMIT_S)
    except TooLongError:
        raise InputError(
            f"{what} took longer than {LIMIT_S} s; try fewer world sizes, or --simulate"
        ) from None
    if found.failed is not None:
        raise InputError(f"{what} cannot be made: {found.failed}")
    return found
