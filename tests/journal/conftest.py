"""What the tests of the journal share."""

from support.journals import journals_end

__all__ = ["journals_end"]
