"""The example of Ray Train, undisturbed and with a worker that dies: run by `test_ray`, which looks at what is left."""

import json
import sys
from pathlib import Path

import ray
import ray_train  # type: ignore[import-not-found]  # of examples/


def main(folder: Path, runs: list[str]) -> None:
    ray_train.start()
    try:
        told = {name: ray_train.fit(folder / name, dies=name == "dies") for name in runs}
    finally:
        ray.shutdown()
    print(json.dumps({name: each["went_on_from"] for name, each in told.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
