"""Where state that another engine has made ends: Spark's query, its newest committed batch, and the watermarks behind it.

Decides with which watermark the first batch on such state begins, and which batch that may be. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from godwit.model.watermark import Policy, Watermark

_LANE: Final = "before"  # stands for all lanes of the batches before the start


@dataclass(frozen=True, slots=True)
class Start:
    """`late_ms`: the watermark of `batch`. `watermark_ms`: the watermark that `batch` has left for the next one."""

    query: str
    batch: int
    late_ms: int = 0
    watermark_ms: int = 0

    def watermark(self, delay_ms: int, policy: Policy) -> Watermark:
        """The watermark at the end of `batch`. The slowest lane would wait for ever for a lane that has no more rows."""
        if policy == "min":
            return Watermark(delay_ms, policy, eviction=self.watermark_ms)
        if policy == "query":  # Spark gives the watermark of the first batch, and goes on from that of the old query
            return Watermark(delay_ms, policy, eviction=self.late_ms)
        lanes = {_LANE: self.watermark_ms + delay_ms} if self.watermark_ms else {}
        return Watermark(delay_ms, policy, eviction=self.late_ms, lanes=lanes)

    def goes_on(self, query: str, batch: int) -> bool:
        """Whether this batch of this query may come after the state."""
        return query == self.query and batch > self.batch

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Start:
        return cls(data["query"], data["batch"], data["late_ms"], data["watermark_ms"])
