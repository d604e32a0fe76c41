"""From the command line to the request."""

from __future__ import annotations

import pytest

from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.screen import CommandFault, Exit
from tests.tables import table


@table(
    ("order", "says"),
    [
        (Order(description="  "), "empty"),
        (Order(description="x", task_id="a/b"), "not a valid id"),
        (Order(description="x", role="CHEF"), "unknown role"),
        (Order(description="x", variables=("NOPE",)), "K=V"),
        (Order(description="x", variables=("=x",)), "K=V"),
        (Order(description="x", approve="maybe"), "maybe"),
        *(
            (Order(description="x", repo=place), "neither a directory nor a URL")
            for place in ("/does/not/exist", "~no-such-user-here/app", "a\0b", "x" * 5_000)
        ),
        (Order(description="x", branch="b", deliberate_only=True), "exclude"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(order: Order, says: str) -> None:
    with pytest.raises(CommandFault, match=says) as caught:
        order.request()
    assert caught.value.exit_code is Exit.USAGE
