"""How the run controller is driven: it knows no clock, and its orders have to be carried out one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.control.controller import RunController
from launcher.control.events import Event
from launcher.control.orders import Order


def drive(controller: RunController, event: Event, carry_out: Callable[[Order], Event | None]) -> None:
    """Report `event` to the controller and carry out what it orders; what an order is answered with counts at once."""
    for order in controller.take(event, time.monotonic(), time.time()):
        answer = carry_out(order)
        if answer is not None:
            drive(controller, answer, carry_out)
