"""The report of a plan as text."""

import re
from dataclasses import replace

import pytest
import view_plans
from test_view_placed import texts

from autopar.ir.plan import Candidate
from autopar.system.text import percent_free, seconds, size
from autopar.view import explain
from autopar.view.pages import placed_page
from autopar.view.placed import placed_svg

plans = pytest.mark.parametrize("make", view_plans.ALL.values(), ids=view_plans.ALL)


def test_durations_and_shares_read_well_however_long():
    texts = {
        0.0: "0 s",
        2.34e-8: "23.4 ns",
        5e-10: "0.5 ns",
        4.9e-3: "4.90 ms",
        86_400: "86400 s",
        1.1e9: "1.1e+09 s",
    }
    assert {value: seconds(value) for value in texts} == texts
    for value in (9.9949e-3, 9.996e-3, 99.96e-3, 0.99951, 9.9999e-6, 999.6e-9):
        assert len(re.sub(r"\D", "", seconds(value))) == 3
    assert [percent_free(share) for share in (0.5, 0.994, 0.999, 1)] == ["50 %", "99 %", "> 99 %", "100 %"]


@plans
def test_the_report_hides_nothing(make):
    plan = make()
    timeline = view_plans.measured(plan)
    text = explain(plan, timeline, plan.makespan * 2, ["A note of the caller."], "all")
    device, alone = plan.best_single
    for wanted in (
        seconds(alone), f"all on {device}", seconds(plan.lower_bound), seconds(plan.makespan),
        seconds(timeline.makespan), size(plan.moved), seconds(plan.makespan * 2), "A note of the caller.",
        "critical path", plan.costed.machine.label,
    ):  # fmt: skip
        assert wanted in text
    for memory in plan.memory:
        assert memory.device in text and size(memory.peak) in text
    for candidate in plan.candidates:
        assert candidate.policy in text and candidate.note in text


def test_reasons_are_limited_and_the_longest_first():
    plan = view_plans.rough(200)
    text = plan.explain("reasons")
    rows = text[text.index("why each cluster") :].split("\n\n")[0].splitlines()[3:]
    longest = max(plan.placed, key=lambda placed: placed.end - placed.start)
    assert len(rows) >= len(plan.placed)
    assert seconds(longest.end - longest.start) in rows[0]


def test_one_device_says_what_splitting_would_cost():
    plan = view_plans.lone()
    other = next(c for c in plan.candidates if c.policy == "round_robin")
    text = " ".join(explain(plan).split())
    assert "Everything is on cuda:0: the best plan over several" in text
    assert seconds(other.makespan) in text and seconds(other.makespan - plan.makespan) in text
    alone = replace(plan, candidates=(Candidate("single cuda:0", "", plan.makespan),))
    assert "no other candidate was feasible, or could be shorter" in explain(alone)


def test_a_device_that_a_pin_keeps_a_run_from_is_still_one_to_beat():
    plan = view_plans.mlp()
    pinned = tuple((device, time if device == "cpu" else None) for device, time in plan.singles)
    alone = next(device for device, time in pinned if time is None)
    shorter = Candidate(f"single {alone}", "", plan.makespan * 1.25)
    plan = replace(plan, singles=pinned, candidates=(*plan.candidates, shorter))
    for text in (explain(plan), " ".join(words for _, words in texts(placed_svg(plan)))):
        assert f"mostly {alone}" in text and seconds(shorter.makespan).split()[0] in text
        assert re.search(r"1\.25 ?×", text) and "8.00" not in text
    longer = replace(plan, candidates=(replace(shorter, makespan=1e9),))
    assert "all on cpu" in explain(longer)


def test_the_plan_that_is_drawn_is_the_one_set_off_among_those_compared():
    plan = view_plans.mlp()
    mine = Candidate(plan.policy, "2 parts", plan.makespan)
    for rivals in (2, 8):
        others = tuple(Candidate(f"rival {n}", "", plan.makespan * (n + 1) / 10) for n in range(rivals))
        page = placed_page(replace(plan, candidates=(*others, mine)))
        assert re.findall(r'class="chosen">(.*?)<', page)[0] == f"{mine.policy}, {mine.split}"
        assert not re.search(r'class="chosen">rival', page)
        # Shown without a click.
        assert rivals < 6 or "<details open>" in page


def test_figures_of_a_late_run_are_refused():
    plan = view_plans.mlp()
    timeline = replace(view_plans.measured(plan), makespan=1234.5, late=0.3, needs_slow_down=77.0)
    text = explain(plan, timeline)
    assert "refused" in text and "30 % late: needs slow_down ≥ 77" in text
    assert seconds(1234.5) not in text
    assert seconds(1234.5) in explain(plan, replace(timeline, needs_slow_down=0.0))


def test_a_plan_that_is_not_run_says_so():
    assert "record() measures it" in explain(view_plans.mlp())
