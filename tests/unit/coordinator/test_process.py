"""A coordinator that cannot start leaves nothing behind in the process that tried."""

import asyncio
import socket
from pathlib import Path

import pytest

from strata.coordinator.process import Coordinator, CoordinatorConfig
from strata.errors import StrataError


@pytest.mark.parametrize("rpc", ["strata", "grpcio"])
def test_one_whose_second_port_is_taken_lets_go_of_the_first_and_of_the_journal(tmp_path: Path, rpc: str) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{probe.getsockname()[1]}"
            probe.close()
            http = f"127.0.0.1:{taken.getsockname()[1]}"
            for _ in range(2):
                config = CoordinatorConfig(listen=listen, http=http, state_dir=tmp_path / "state", rpc=rpc)
                with pytest.raises(StrataError, match=f"^HTTP: cannot listen on {http}"):
                    await Coordinator(config).start()

    asyncio.run(work())
