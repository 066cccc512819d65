"""What stands on the page on data is so: the example that needs nothing else runs, and the shuffles are as good."""

import re
import statistics
from pathlib import Path

import pytest

from benchmarks.data_loading import scale
from benchmarks.data_loading.shuffles import BATCHES, EPOCHS, imbalance_of, spreads
from strata.core.orders import WINDOW_SHARDS, ElasticOrder, ShardLayout
from strata.data.position import streams_for

PAGE = Path(__file__).parents[3] / "docs" / "DATA.md"
ROW = re.compile(r"^\| ([\d,]+)[^|]*\| (\d+)[^|]*\| (\d+)[^|]*\| [^|]*\| (\d+) \| ([\d.]+) \|$", re.MULTILINE)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(import tempfile\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out.splitlines()[-2:] == ["[{'id': 2}]", "[{'id': 1500}]"]


@pytest.mark.skipif(scale.ROWS != 2_000_000, reason="BENCH_ROWS says another number of rows than the page")
def test_the_shuffles_are_as_good_as_the_page_says() -> None:
    rows = ROW.findall(PAGE.read_text("utf-8"))
    assert len(rows) == 6
    for number, (shard, streams, window, stretches, imbalance) in enumerate(rows):
        layout = ShardLayout(scale.ROWS, int(shard.replace(",", "")))
        if number == 0:
            assert (streams_for(layout, scale.BATCH, WINDOW_SHARDS, True), WINDOW_SHARDS) == (int(streams), int(window))
        batches = []
        for seed in range(EPOCHS):
            order = ElasticOrder(layout, seed, 0, True, scale.BATCH, streams=int(streams), window_shards=int(window))
            batches += [order.batch(batch).tolist() for batch in range(BATCHES)]
        assert round(statistics.median(spreads(batches))) == int(stretches)
        assert f"{imbalance_of(batches):.1f}" == imbalance
