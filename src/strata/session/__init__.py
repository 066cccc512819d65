"""This process as one worker of its job, for everything that talks to the coordinator on its behalf."""

from strata.session.session import CALL_SECONDS, CarryOut, Session, Who, is_silence
from strata.session.shared import join, leave

__all__ = ["CALL_SECONDS", "CarryOut", "Session", "Who", "is_silence", "join", "leave"]
