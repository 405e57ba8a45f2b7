"""Ready windows: native processors that give one row of aggregates for each window of a key."""

from godwit.windows.count import CountSliding, CountTumbling
from godwit.windows.event_time import EventSliding, EventTumbling

__all__ = ["CountSliding", "CountTumbling", "EventSliding", "EventTumbling"]
