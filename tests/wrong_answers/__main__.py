"""`python -m tests.wrong_answers`: the table of docs/wrong_answers.md. It takes a minute or two."""

from __future__ import annotations

import sys

from . import table


def main() -> int:
    """Print the table; 1 if autopar answers wrongly somewhere."""
    rows = list(table.rows())
    print(table.markdown(rows))
    return int(any(row.verdicts[name] == table.WRONG for row in rows for name in table.OURS))


if __name__ == "__main__":
    sys.exit(main())
