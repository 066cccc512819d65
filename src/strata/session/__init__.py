"""This process as one worker of its job, for everything that talks to the coordinator on its behalf."""

from strata.session.pulse import Pulse
from strata.session.session import CALL_SECONDS, CarryOut, Place, Report, Session, Who, is_silence, will_pass
from strata.session.shared import activate, active, deactivate, ends, join, join_again, leave
from strata.session.whom import who_is, who_joins, who_takes_part

__all__ = [
    "CALL_SECONDS",
    "CarryOut",
    "Place",
    "Pulse",
    "Report",
    "Session",
    "Who",
    "activate",
    "active",
    "deactivate",
    "ends",
    "is_silence",
    "join",
    "join_again",
    "leave",
    "who_is",
    "who_joins",
    "who_takes_part",
    "will_pass",
]
