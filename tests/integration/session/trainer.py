"""A training process with a pulse, which does what it is told on standard input and says what came of it."""

import ctypes
import json
import os
import sys
import time

from strata import background
from strata.config import Config
from strata.session import Pulse, Session, Who
from strata.wire.connecting import channel_to


def main(address: str, job: str, worker: str) -> None:
    told = json.loads(sys.stdin.readline())
    config = Config({"coordinator_url": address} | told["settings"], {})
    who = Who(job, worker, 0, 1)
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    session = Session(channel_to(config), who)
    pulse = Pulse(config, who, stall_seconds=told["stall_seconds"])
    if told["pulse"]:
        session.use(pulse)
    session.start()
    libc = ctypes.PyDLL(None)  # whose functions keep Python's lock
    for line in sys.stdin:
        command, *rest = line.split()
        answer = ""
        if command == "register":
            background.run(session.call("ListCheckpoints"))
            answer = str(session.incarnation)
        elif command == "hold":
            libc.usleep(int(float(rest[0]) * 1e6))
        elif command == "fork":
            answer = str(os.fork())
            if answer == "0":
                pulse.left()
                pulse.close()
                time.sleep(120)
                os._exit(0)
        elif command == "wait":
            try:
                answer = str(os.wait())
            except ChildProcessError:
                answer = "none"
        elif command == "leave":
            background.run(session.close())
        print(f"{command} {answer}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
