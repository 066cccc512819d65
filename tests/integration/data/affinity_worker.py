"""A worker process that reads a dataset in the affinity order, and writes down what it has trained on, line by line."""

import sys
import time

from strata.data import AffinityLoader


def main(url: str, worker: str, path: str, epochs: int, pause: float) -> None:
    with (
        AffinityLoader("d", 8, coordinator_url=url, worker_id=worker, carry_on=True, report_seconds=0.1) as loader,
        open(path, "a", encoding="utf-8") as out,
    ):
        while (epoch := loader.epoch) < epochs:
            for batch in loader:
                print(epoch, *batch["id"].tolist(), file=out, flush=True)
                time.sleep(pause)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
