"""`python -m tests.benchmarks.timed pipelines`: every way has a row, and what was planned says what it predicted."""

from __future__ import annotations

import pytest
from benchmarks.timed import pipelines


@pytest.mark.release
def test_each_way_is_measured(capsys):
    found = pipelines.run(1, ["12-layer MLP"])
    assert set(found) == {"12-layer MLP"}
    for rows in found.values():
        assert all(row["measured_s"] > 0 for row in rows.values())
        planned = [row for name, row in rows.items() if name.startswith("planned")]
        assert len(planned) == 5 and all(row["predicted_s"] > 0 and 0 <= row["waits"] < 1 for row in planned)
    printed = capsys.readouterr().out
    assert "DistributedDataParallel" in printed and "by formula" in printed
