"""How a training step looks: words for clusters and values, phases, the reduction hidden behind the backward, folds."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import view_plans
from hypothesis import given, settings
from hypothesis import strategies as st
from test_view_placed import check_fold, overlapping

from autopar.ir.costed import Cluster, CostedGraph, TaskCost
from autopar.ir.graph import PART, SUM, Graph, Ref, Task, Value
from autopar.ir.plan import Plan
from autopar.ir.timeline import Placed, Span, Timeline, Transfer
from autopar.view import explain, hidden
from autopar.view.drawing import design
from autopar.view.placed import placed_svg
from autopar.view.placed.fold import fold
from autopar.view.placed.layout import lay_out
from autopar.view.report.statistics import phases
from autopar.view.timeline import timeline_svg


def part_of(name):
    whole, mark, number = name.partition("#")
    return (whole, int(number)) if mark else None


def step(layers=("fc1", "fc2"), parts=2, seconds=1e-4, copy=2e-5):
    """One training step of a chain of layers, as autopar makes them: the batch in parts, weights at home on the
    CPU; scheduled one task after the other in each lane."""
    on = view_plans.machine(parts)
    state = [f"{layer}.weight" for layer in layers]
    values = {"x": Value("x", (8, 4), "float32", 128, "x", "input", "x")}
    values.update({name: Value(name, (4, 4), "float32", 64, name, "state", name) for name in state})
    tasks: list[Task] = []

    def add(name, target, reads, *made, **more):
        for value in made:
            values[value] = Value(value, (4, 4), "float32", 64, value, part=part_of(value))
        tasks.append(Task(name, target, tuple(map(Ref, reads)), outputs=made, unpack=len(made) > 1, **more))

    for part in range(parts):
        add(f"x#part{part}", PART, ["x"], f"x#{part}", free=True)
    for part in range(parts):
        rows, before = {"part": f"rows {part}"}, f"x#{part}"
        for number, layer in enumerate(layers):
            name = f"addmm_{number}#{part}"
            add(name, "aten.linear.default", [before, f"{layer}.weight"], name, module=layer, **rows)
            before = name
        rows["phase"] = "backward"
        name = f"mse_loss_backward#{part}"
        add(name, "aten.mse_loss_backward.default", [before], name, module="criterion", **rows)
        before = name
        for number, layer in reversed(list(enumerate(layers))):
            grad = f"{layer}.weight.grad#{part}"
            add(grad, "aten.mm.default", [before, f"addmm_{number}#{part}"], grad, module=layer, **rows)
            if number:
                name = f"mm_{number}#{part}"
                add(name, "aten.mm.default", [before, f"{layer}.weight"], name, module=layer, **rows)
                before = name
    for layer in reversed(layers):
        grads, weight = [f"{layer}.weight.grad#{part}" for part in range(parts)], f"{layer}.weight"
        values[f"{weight}.grad"] = Value(f"{weight}.grad", (4, 4), "float32", 64, f"{weight}.grad")
        tasks.append(
            Task(f"{weight}.grad#sum", SUM, (tuple(map(Ref, grads)),), outputs=(f"{weight}.grad",),
                 module=layer, phase="backward")
        )  # fmt: skip
        add(f"update {weight}", "autopar.sgd", [weight, f"{weight}.grad"], f"{weight}_next",
            module=weight, phase="update")  # fmt: skip
    updates = tuple((f"{name}_next", name) for name in state)
    graph = Graph(
        "step", tuple(values.values()), tuple(tasks), ("x",), tuple(state), (f"addmm_{len(layers) - 1}#0",),
        updates, f"{parts} parts", carried=tuple(state),
    ).check()  # fmt: skip
    return scheduled(graph, on, seconds, copy)


def scheduled(graph, on, seconds, copy):
    """A plan with part k on accelerator k and all else on the CPU."""
    where, there, free = {}, {}, {}
    placed, transfers, costs, clusters = [], [], [], []
    for task in graph.tasks:
        part = re.search(r"#(\d+)$", task.name)
        device = f"emulated:{part[1]}" if part and task.part else "cpu"
        start = 0.0
        for name in task.inputs:
            if name in graph.producer and where[name] != device and (name, device) not in there:
                lane = on.copy_lane(where[name], device)
                ready = there[name, where[name]]
                begin = max(ready, free.get(lane, 0.0))
                free[lane] = there[name, device] = begin + copy
                transfers.append(Transfer(name, where[name], device, lane, begin, begin + copy, ready, 64))
            start = max(start, there.get((name, device), 0.0))
        lane = f"{device}/0"
        start = max(start, free.get(lane, 0.0))
        end = free[lane] = start + (1e-6 if task.free else seconds)
        for name in task.outputs:
            where[name], there[name, device] = device, end
        placed.append(Placed(task.name, device, lane, start, end))
        costs.append(TaskCost(task.name, tuple(end - start for _ in on.devices)))
        clusters.append(Cluster(task.name, (task.name,), costs[-1].seconds, 0.0, task.inputs, task.outputs))
    home = tuple((name, "cpu") for name in (*graph.inputs, *graph.state))
    costed = CostedGraph(graph, on, tuple(costs), tuple(clusters), home, ((graph.outputs[0], "cpu"),))
    makespan = max(item.end for item in (*placed, *transfers))
    return Plan(
        costed, "given", tuple(sorted(placed, key=lambda p: p.start)),
        tuple(sorted(transfers, key=lambda t: t.start)), (), (), makespan,
    )  # fmt: skip


def test_runs_and_values_are_called_by_module_parameter_and_phase():
    words = step().words
    for cluster, called in {
        "x#part0": "split x #0",
        "addmm_0#1": "fc1 forward #1",
        "mse_loss_backward#0": "mse_loss backward #0",
        "mm_1#0": "fc2 backward #0",
        "fc2.weight.grad#1": "fc2.weight.grad #1",
        "fc2.weight.grad#sum": "sum fc2.weight.grad",
        "update fc1.weight": "update fc1.weight",
    }.items():
        assert words.cluster(cluster) == called
    for value, called in {
        "x#1": "x, part 1",
        "fc1.weight": "fc1.weight",
        "fc1.weight.grad#0": "fc1.weight.grad, part 0",
        "fc1.weight.grad": "fc1.weight.grad",
        "fc1.weight_next": "fc1.weight, new",
        "addmm_1#0": "fc2 output, part 0",
    }.items():
        assert words.value(value) == called


def test_a_run_of_several_tasks_is_called_after_what_takes_its_time():
    plan = step()
    names = [task.name for task in plan.costed.graph.tasks]

    def joined(*tasks):
        cluster = replace(plan.costed.cluster[tasks[0]], name="joined", tasks=tasks)
        costed = replace(plan.costed, clusters=(*plan.costed.clusters, cluster))
        return replace(plan, costed=costed).words.cluster("joined")

    assert joined("addmm_0#0", "addmm_1#0") == "fc1, fc2 forward #0"
    assert joined("mse_loss_backward#1", "mm_1#1") == "mse_loss, fc2 backward #1"
    assert joined("addmm_0#0", "fc2.weight.grad#0", "mm_1#0") == "fc2 backward #0"
    assert joined(*(name for name in names if name.startswith("update"))).startswith("update fc")


def test_a_gradient_that_is_a_view_of_a_sum_is_called_a_gradient_from_its_parts_on():
    """A bias: `sum_1` of the parts, of which its gradient is a view."""
    b = Value("fc.bias", (4,), "float32", 16, "fc.bias", "state", "fc.bias")
    made = [
        Value(name, (4,), "float32", 16, name, part=part_of(name))
        for name in ("g#0", "g#1", "g", "fc.bias.grad")
    ]
    tasks = (
        Task("g#0", "aten.sum.default", (Ref("fc.bias"),), outputs=("g#0",), part="rows 0", phase="backward"),
        Task("g#1", "aten.sum.default", (Ref("fc.bias"),), outputs=("g#1",), part="rows 1", phase="backward"),
        Task("g#sum", SUM, ((Ref("g#0"), Ref("g#1")),), outputs=("g",), phase="backward"),
        Task("fc.bias.grad", "aten.reshape.default", (Ref("g"),), outputs=("fc.bias.grad",), free=True,
             phase="backward"),
    )  # fmt: skip
    graph = Graph("b", (b, *made), tasks, (), ("fc.bias",), ("fc.bias.grad",)).check()
    words = scheduled(graph, view_plans.machine(2), 1e-4, 1e-5).words
    assert words.cluster("g#sum") == "sum fc.bias.grad" and words.value("g#1") == "fc.bias.grad, part 1"
    assert words.phase("fc.bias.grad") == "reduction" and words.phase("g#0") == "backward"


def test_a_plan_without_a_backward_says_nothing_of_phases():
    plan = view_plans.towers()
    assert not plan.words.training and not phases(plan, plan.timeline())
    assert "time by phase" not in explain(plan) and "forward" not in placed_svg(plan)
    assert hidden(plan, plan.timeline()) == 1.0


@given(st.integers(1, 4), st.integers(1, 3), st.floats(1e-5, 1e-3), st.floats(1e-6, 1e-3))
@settings(max_examples=20, deadline=None)
def test_what_the_phases_add_is_the_time_in_which_anything_is_done(layers, parts, seconds, copy):
    plan = step(tuple(f"m.{index}.fc" for index in range(layers)), parts, seconds, copy)
    timeline = plan.timeline()
    found = phases(plan, timeline)
    assert [*found] == [name for name in ("forward", "backward", "reduction", "update") if name in found]
    for active, exposed in found.values():
        assert 0 <= exposed <= active * (1 + 1e-9)
        assert active <= plan.makespan * (1 + 1e-9)
    assert sum(exposed for _, exposed in found.values()) <= plan.makespan * (1 + 1e-9)
    assert 0 <= hidden(plan, timeline) <= 1


def test_the_hidden_share_counts_sums_and_copies_of_gradients_against_the_backward():
    plan = step()
    lanes = plan.costed.machine.lanes

    def share(*spans):
        return hidden(plan, Timeline("t", lanes, spans, 10.0))

    def run(name, device, start, end):
        return Span(f"{device}/0", device, "compute", name, start, end)

    def moved(name, start, end):
        return Span("emulated:0/out", "emulated:0", "copy", name, start, end, src="emulated:0", dst="cpu")

    backward = run("mm_1#0", "emulated:0", 0, 4)
    assert share(backward, moved("fc2.weight.grad#0", 1, 3)) == 1
    assert share(backward, moved("fc2.weight.grad#0", 2, 6)) == pytest.approx(0.5)
    assert share(backward, run("fc2.weight.grad#sum", "cpu", 3, 7)) == pytest.approx(0.25)
    assert share(backward, moved("x#0", 5, 6), moved("fc2.weight_next", 6, 7)) == 1
    assert share(run("addmm_0#0", "emulated:0", 0, 4), moved("fc2.weight.grad#0", 1, 3)) == 0
    # Where tasks were measured their spans count, not those of the clusters around them.
    task = replace(run("mm_1#0", "emulated:0", 0, 1), cluster="all")
    assert share(run("all", "emulated:0", 0, 4), task, moved("fc2.weight.grad#0", 0, 4)) == pytest.approx(
        0.25
    )


def test_views_are_time_of_no_phase():
    """Neither where runs were planned nor where tasks were measured."""
    plan = step()
    planned = plan.timeline()
    tasks = tuple(replace(span, cluster=span.name) for span in planned.spans if span.kind == "compute")
    free = {task.name for task in plan.costed.graph.tasks if task.free}
    for timeline in (planned, replace(planned, spans=(*planned.spans, *tasks))):
        without = tuple(span for span in timeline.spans if span.name not in free)
        assert 0 < len(without) < len(timeline.spans)
        assert phases(plan, timeline) == phases(plan, replace(timeline, spans=without))


def test_a_sum_that_the_backward_waits_for_is_of_the_backward():
    plan = step()
    graph = plan.costed.graph
    tasks = tuple(
        replace(task, args=(*task.args, Ref("fc2.weight.grad"))) if task.name == "fc1.weight.grad#0" else task
        for task in sorted(graph.tasks, key=lambda task: task.name.startswith("fc1.weight.grad"))
    )
    moved = [task for task in tasks if task.name == "fc1.weight.grad#sum"]
    order = [t for t in tasks if t not in moved and "update fc1" not in t.name]
    order += [*moved, *(t for t in tasks if "update fc1" in t.name)]
    words = scheduled(replace(graph, tasks=tuple(order)).check(), plan.costed.machine, 1e-4, 1e-5).words
    assert (
        words.phase("fc2.weight.grad#sum") == "backward" and words.phase("fc1.weight.grad#sum") == "reduction"
    )


def test_the_report_divides_the_time_and_says_what_is_hidden():
    plan = step()
    text = explain(plan)
    for phase in ("forward", "backward", "reduction", "update"):
        assert re.search(rf"^{phase} .*s$", text, re.M)
    share = hidden(plan, plan.timeline())
    assert f"hidden behind the backward: {share * 100:.0f} %" in text
    assert "sum fc2.weight.grad" in str(plan) and "fc2.weight, new" not in text.split("why each")[0][:200]
    measured = replace(plan.timeline(), makespan=plan.makespan * 1.1, predicted=plan.timeline())
    assert "as measured" in explain(plan, measured) and "measured active" in explain(plan, measured)


def test_the_measured_time_is_held_against_what_was_predicted_of_the_programs_that_ran():
    plan = step()
    short = replace(plan.timeline(), makespan=plan.makespan / 2)
    text = explain(plan, replace(short, predicted=short))
    assert "0 % against predicted" in text and "of the programs that ran" in text


def test_the_figure_can_be_read_from_the_picture():
    plan = step(seconds=1e-3, copy=2e-4)
    svg = placed_svg(plan)
    text = " ".join(
        element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("text")
    )
    for wanted in (
        "fc1 forward #0", "fc2 forward #1", "mse_loss backward #0", "fc2 backward #1", "fc1.weight.grad #0",
        "sum fc2.weight.grad", "update fc1.weight", "fc2.weight.grad, part 0", "of reduction behind backward",
        "forward", "backward", "sum, update",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert overlapping(svg) == []


def test_phases_differ_by_more_than_colour():
    layout = lay_out(step(seconds=1e-3))
    seen = {}
    from autopar.view.drawing.design import fill_of, strips

    for box in layout.boxes:
        shade = layout.columns[box.card.device].shade
        seen[box.card.phase] = strips(box.card.phase), fill_of(shade, box.card.phase)
    assert set(seen) == {"forward", "backward", "reduction", "update"}
    assert len({seen[phase][0] for phase in ("forward", "backward", "update")}) == 3


def test_low_boxes_have_no_name_but_a_tooltip_and_are_counted():
    plan = step(tuple(f"fc{n}" for n in range(9)), seconds=1e-4, copy=1e-3)
    layout, svg = lay_out(plan), placed_svg(plan)
    assert layout.unnamed and f"{len(layout.unnamed)} short clusters without a name" in svg
    assert overlapping(svg) == []
    assert svg.count("<title>") == 1 + len(layout.boxes) + len(layout.arrows)


def test_blocks_fold_in_forward_and_in_backward_apart():
    plan = step(tuple(f"layers.{n}.fc" for n in range(24)), seconds=1e-4, copy=1e-5)
    check_fold(plan)
    stacks = [card for held in fold(plan).values() for card in held if card.copies]
    found = {card.phase: card for card in stacks}
    assert {"forward", "backward"} <= set(found)
    assert found["forward"].title == "layers 0 … 23 forward #1"
    first, last = map(int, re.findall(r"\d+", found["backward"].title)[:2])
    assert first > last and "backward" in found["backward"].title
    for card in stacks:
        assert {plan.words.phase(cluster) for cluster in card.clusters} == {card.phase}


def test_a_timeline_tells_the_phases_and_keeps_the_words():
    plan = step(seconds=1e-3)
    timeline = plan.timeline()
    svg = timeline_svg(replace(timeline, predicted=timeline))
    assert "sum, update" in svg and "fc1 forward #0" in svg
    spans = {span.name: span for span in timeline.spans if span.kind == "compute"}
    assert spans["fc2.weight.grad#sum"].phase == "reduction" and spans["mm_1#0"].phase == "backward"
    assert spans["fc2.weight.grad#0"].title == "fc2.weight.grad #0"
    both = timeline.then(timeline)
    assert len(both.spans) == 2 * len(timeline.spans) and ET.fromstring(timeline_svg(both)) is not None


@given(st.text("abc.123 #,…", max_size=50), st.floats(10, 300), st.booleans())
@settings(max_examples=100, deadline=None)
def test_words_are_shortened_to_the_room(text, room, bold):
    short = design.Names([text, "abc.1.b", "a.c"]).fit(text, room, 13, bold)
    assert design.width(short, 13, bold) <= room or not short


def test_words_lose_first_what_is_told_elsewhere():
    names = design.Names(
        [f"layers.{block}.{name}.weight" for block in (0, 1) for name in ("linear1", "linear2")]
        + ["fc1.weight.grad", "fc2.weight.grad"]
    )

    def fit(text, like):
        return names.fit(text, design.width(like, 13), 13)

    assert fit("fc1.weight.grad, part 0", "fc1.weight.grad, pa") == "fc1.weight.grad"
    assert fit("fc1.weight.grad, part 0", "fc1.weight.g") == "fc1…grad"
    assert (
        fit("layers.1.linear1.weight backward #0", "layers.1.linear1.weight back")
        == "layers.1.linear1.weight"
    )
    assert fit("update layers.0.linear2.weight", "update layers.0.linear2….") == "update layers.0.linear2…"
    short = {fit(f"layers.{block}.linear{one}.weight", "….0.linear2…") for block in (0, 1) for one in (1, 2)}
    assert len(short) == 4
