"""Of what serves signatures the least recently used goes."""

from types import SimpleNamespace

from autopar.session import program_cache as calls
from autopar.session.options import Options
from autopar.session.program_cache import ProgramCache


def test_the_least_recently_used_goes_and_is_closed(monkeypatch) -> None:
    monkeypatch.setattr(calls, "SIZES", 3)
    kept, closed = ProgramCache("the model", None, Options()), []
    for key in range(3):
        kept.add(key, SimpleNamespace(close=lambda key=key: closed.append(key)))
    assert kept.used(0) is kept[0] and kept.used("unknown") is None
    kept.add(3, SimpleNamespace(close=None))
    assert [*kept] == [2, 0, 3] and closed == [1]
