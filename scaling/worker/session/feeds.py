"""The feeds of a launch, by batch size and tensor degree, and what they hold of memory that a training would not."""

from __future__ import annotations

from scaling.spec.schedule import PLAIN
from scaling.worker.data.feed import Feed, open_feed
from scaling.worker.data.workload import Workload
from scaling.worker.measure.arms import Arms
from scaling.worker.session.session import LaunchSession


class Feeds:
    """World sizes with the same batch share a feed and its workers."""

    def __init__(self, session: LaunchSession, workload: Workload) -> None:
        self._session, self._workload = session, workload
        self._feeds: dict[tuple[int, int], Feed] = {}

    def of(self, batch: int, *, tensor: int) -> Feed:
        """The feed of a batch size, the same for each `tensor` ranks."""
        session = self._session
        if (batch, tensor) not in self._feeds:
            self._feeds[batch, tensor] = open_feed(
                session.spec,
                self._workload,
                batch,
                rank=session.rank,
                device=session.device,
                tensor=tensor,
            )
        feed = self._feeds[batch, tensor]
        feed.resume()  # another world size may have left it paused
        return feed

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def memory(self, arms: Arms, peak: int | None) -> dict[str, int | None]:
        """What the training of a world size under a strategy holds, and the harness beside it, bytes.

        `peak`: of its plain blocks. The harness's buffers lie in memory in their own blocks alone. On a CPU it keeps
        batches that a training would not: these are not the training's, and its peak is told without them.
        """
        held, own = arms.held, 0
        if not self._session.spec.topology.accelerated:
            own = sum(feed.held_bytes for feed in self._feeds.values()) - arms.feed(PLAIN).batch_bytes
        return {
            "peak_bytes": None if peak is None else peak - own,
            "parameters_bytes": held.get("parameters"),
            "gradients_bytes": held.get("gradients"),
            "optimizer_bytes": held.get("optimizer"),
            "activations_bytes": arms.activations_bytes,
            "unsharded_bytes": arms.unsharded_bytes or None,
            **{f"computed_{name}_bytes": size for name, size in arms.computed().items()},
            "communicators_bytes": arms.communicator_bytes,
            "harness_bytes": own,
        }
