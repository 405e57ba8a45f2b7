"""Every message that travels between processes, by who speaks to whom.

One class per message, so that both sides agree on its fields and a reader finds all of them in one place. How a message becomes
bytes is in `transport/typed.py`; what a message means is decided by the module that handles it.
"""

from __future__ import annotations

# -- router to host and back -----------------------------------------------------------------------------------------

# -- origin to target and back ---------------------------------------------------------------------------------------

# -- driver to host and back -----------------------------------------------------------------------------------------

# -- host to driver and back -----------------------------------------------------------------------------------------

# -- host to host: backups -------------------------------------------------------------------------------------------
