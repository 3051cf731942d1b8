"""How much is measured: the full run, and the quick one that only shows that all works."""

from __future__ import annotations

from dataclasses import dataclass

#: Seed of everything random, so that two runs do the same.
SEED = 20240229


@dataclass(frozen=True)
class Scale:
    """The sizes of all scenarios.

    Attributes:
        rounds: turns of what takes seconds.
        tasks: tasks a turn whose lateness is measured.
        longest_countdown_s: of those tasks.
        publish_rounds: turns of publishing.
        publish_calls: calls a turn.
        pending: numbers of pending messages at which transferring and memory are measured.
        mirrored_up_to: of those, the largest at which Redisson's mirror list is measured; filling and draining
            it takes time in proportion to its square.
        transfer_rounds: turns of transferring.
        stock_pending: tasks that a stock worker has to hold.
        loops: size of the fleet.
        fleet_messages: numbers of messages that the fleet transfers in 20 s.
        backlog: immediate tasks that a worker finds.
        idle_s: how long idle workers are watched, in seconds.
    """

    rounds: int
    tasks: int
    longest_countdown_s: float
    publish_rounds: int
    publish_calls: int
    pending: tuple[int, ...]
    mirrored_up_to: int
    transfer_rounds: int
    stock_pending: int
    loops: int
    fleet_messages: tuple[int, ...]
    backlog: int
    idle_s: float


FULL = Scale(
    rounds=3,
    tasks=2_500,
    longest_countdown_s=12.0,
    publish_rounds=40,
    publish_calls=200,
    pending=(10_000, 100_000, 1_000_000),
    mirrored_up_to=100_000,
    transfer_rounds=20,
    stock_pending=10_000,
    loops=20,
    fleet_messages=(20, 200, 2_000),
    backlog=20_000,
    idle_s=30.0,
)

QUICK = Scale(
    rounds=1,
    tasks=300,
    longest_countdown_s=3.0,
    publish_rounds=6,
    publish_calls=100,
    pending=(2_000, 20_000),
    mirrored_up_to=20_000,
    transfer_rounds=3,
    stock_pending=1_000,
    loops=5,
    fleet_messages=(200,),
    backlog=2_000,
    idle_s=10.0,
)
