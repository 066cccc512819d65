"""How long a channel has found nobody."""

from math import inf

from strata.rpc.silence import Silence


def test_silence_lasts_from_the_first_try_that_found_nobody_to_the_first_that_did() -> None:
    now = 10.0
    silence = Silence(lambda: now)
    assert (silence.seconds, silence.seconds_ago) == (0.0, inf)
    silence.begins()
    now = 12.0
    silence.begins()
    now = 15.0
    assert (silence.seconds, silence.seconds_ago) == (5.0, 3.0)
    silence.ends()
    assert (silence.seconds, silence.seconds_ago) == (0.0, 3.0)
    now = 20.0
    silence.begins()
    now = 21.0
    assert (silence.seconds, silence.seconds_ago) == (1.0, 1.0)
