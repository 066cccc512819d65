"""A worker process that registers, sends heartbeats, and says on standard output what it hears."""

import sys
import time

from strata.errors import Fenced, StrataError
from strata.rpc import RpcError
from tests.servers.coordinator import Client


def main(address: str, job: str, worker: str, rank: int, world_size: int) -> None:
    with Client(address, job) as client:
        who = client.register(worker, rank=rank, world_size=world_size)
        print(f"registered {who.incarnation}", flush=True)
        step = 0
        while True:
            try:
                client.heartbeat(who, state="WORKER_STATE_TRAINING", step=step)
            except Fenced as error:
                print(f"fenced {error.code}: {error}", flush=True)
                try:
                    client.call("BeginCheckpoint", worker_id=worker, incarnation=who.incarnation, step=step)
                except StrataError as refusal:
                    print(f"refused {refusal.code}", flush=True)
                return
            except RpcError:
                continue  # it does not answer: ask again
            step += 1
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
