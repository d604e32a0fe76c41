"""The numbers a pool goes by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """How a pool waits, tries again and asks. Times are in seconds.

    Attributes:
        patience: how long a call waits while no endpoint serves, and goes on trying from its first fault on.
        max_tries: how often a call may meet a server that breaks (5xx, no completion), wherever.
        backoff: before the next try at the same endpoint, doubled each time, with jitter.
        longest_backoff: the longest of these waits.
        fault_threshold: faults in a row that open an endpoint's circuit.
        open_for: how long a circuit stays open the first time, doubled each time it opens again.
        longest_open: the longest a circuit stays open.
        ramp: the time in which an endpoint that is back may get twice as many calls at once.
        poll_every: between two looks at the servers' own metrics.
        ping_within: what a ping may take.
    """

    patience: float = 120.0
    max_tries: int = 3
    backoff: float = 1.0
    longest_backoff: float = 30.0
    fault_threshold: int = 3
    open_for: float = 1.0
    longest_open: float = 10.0
    ramp: float = 2.0
    poll_every: float = 2.0
    ping_within: float = 10.0
