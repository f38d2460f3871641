"""Pictures of planned graph files: names with words in them, bounds far below."""

import random

from taskfiles import randomly

from autopar import schedule
from autopar.view.placed.labels import free_labels
from autopar.view.placed.layout import lay_out


def at(arrow, x):
    """How far down an arrow is at `x`, None beside it."""
    (x1, y1), (x2, y2) = arrow.start, arrow.end
    share = (x - x1) / (x2 - x1)
    return y1 + share * (y2 - y1) if 0 <= share <= 1 else None


def test_no_other_arrow_is_between_the_name_of_a_transfer_and_its_own():
    found = 0
    for seed in (4, 17, 20, 23):
        layout = lay_out(schedule(randomly(random.Random(seed), 25), budget_s=1e-3))
        named = {}
        for arrow in layout.arrows:
            named.setdefault(arrow.transfer.value, []).append(arrow)
        for label in free_labels(layout):
            arrows = named.get(label.text, ())
            if len(arrows) != 1:
                continue
            x, y = label.rect.x + label.rect.w / 2, label.rect.y + label.rect.h / 2
            own = at(arrows[0], x)
            if own is None:
                continue
            found += 1
            others = [at(other, x) for other in layout.arrows if other is not arrows[0]]
            low, high = sorted((y, own))
            # Nearer than this two arrows look like one.
            assert not [o for o in others if o is not None and low < o < high and abs(o - own) > 6]
    assert found > 10
