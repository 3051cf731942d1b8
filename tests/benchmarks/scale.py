"""How much is measured: the full run, and the quick one that only shows that all works."""

from __future__ import annotations

from dataclasses import dataclass

#: Seed of everything random, so that two runs do the same.
SEED = 20240229


@dataclass(frozen=True)
class Scale:
    """The sizes of all scenarios.

    Attributes:
        rounds: turns of random countdowns.
        tasks: tasks a turn whose lateness is measured.
        longest_countdown_s: of those tasks.
        steady_s: how long tasks are due at a constant rate, in seconds.
        steady_rate: how many of them a second.
        beyond_s: countdowns just above so many seconds.
        burst: tasks that are due at one instant.
        immediate_burst: immediate tasks that they are compared with.
        stock_burst: both for stock, whose worker holds all of them in memory, and fetches them first.
        publish_rounds: turns of publishing.
        publish_calls: calls a turn.
        pending: numbers of pending messages at which transferring is measured.
        mirrored_up_to: of those, the largest at which Redisson's mirror list is measured; filling and draining
            it takes time in proportion to its square.
        transfer_rounds: turns of transferring.
        memory_pending: number of pending messages at which the server's memory is measured.
        worker_pending: number of pending messages at which the worker's memory is measured.
        stock_pending: tasks that a stock worker has to hold.
        ready_messages: number of ready messages of which one is removed.
        ready_rounds: turns of removing.
        loops: sizes of the fleet; the first is what the others are compared with.
        fleet_messages: numbers of messages that the fleet transfers.
        fleet_s: the messages become due over this time, in seconds: several periodic looks (5 s) long.
        backlog: immediate tasks that a worker finds, in all turns together.
        backlog_turns: turns.
        limit_rounds: turns of redis-benchmark.
        limit_calls: its calls a turn; five times as many in pipelines.
        idle_workers: numbers of idle workers.
        idle_s: how long idle workers are watched, in seconds.
        entries: periodic entries with which a planner starts.
        peer_entries: the same for the peer, which takes its time for each.
        storm: periodic entries that are due at one full minute.
        spread: periodic entries that are not due at one instant.
        cluster_rounds: turns on a cluster and on one server.
        cluster_tasks: tasks a turn.
        cluster_due: messages that are due on a cluster, a turn.
        outage_s: how long a worker on a cluster is watched before a node is lost, in seconds.
        metrics_turns: turns with and without metrics.
        metrics_tasks: tasks a turn.
        scrape_messages: messages that wait during a scrape.
        scrape_queues: their queues.
        scrapes: how many.
        web_tasks: tasks that wait while the web page is asked.
        web_rounds: turns of asking.
        web_requests: requests a turn.
        web_chunks: chunks of each bulk action.
        web_tabs_s: how long tabs are open, in seconds.
        unique_keys: number of keys at which the server's memory is measured.
        others_rounds: turns of each library.
        others_tasks: tasks a turn whose lateness is measured.
        others_longest_s: the longest countdown of those, in seconds.
        others_backlog: tasks that workers find when they start.
        storms_together: whether the storms of all variants are awaited at the same full minute, which saves minutes
            and distorts what is measured.
    """

    rounds: int
    tasks: int
    longest_countdown_s: float
    steady_s: float
    steady_rate: int
    beyond_s: float
    burst: int
    immediate_burst: int
    stock_burst: int
    publish_rounds: int
    publish_calls: int
    pending: tuple[int, ...]
    mirrored_up_to: int
    transfer_rounds: int
    memory_pending: int
    worker_pending: int
    stock_pending: int
    ready_messages: int
    ready_rounds: int
    loops: tuple[int, ...]
    fleet_messages: tuple[int, ...]
    fleet_s: float
    backlog: int
    backlog_turns: int
    limit_rounds: int
    limit_calls: int
    idle_workers: tuple[int, ...]
    idle_s: float
    entries: int
    peer_entries: int
    storm: int
    spread: int
    cluster_rounds: int
    cluster_tasks: int
    cluster_due: int
    outage_s: float
    metrics_turns: int
    metrics_tasks: int
    scrape_messages: int
    scrape_queues: int
    scrapes: int
    web_tasks: int
    web_rounds: int
    web_requests: int
    web_chunks: int
    web_tabs_s: float
    unique_keys: int
    others_rounds: int
    others_tasks: int
    others_longest_s: float
    others_backlog: int
    storms_together: bool


FULL = Scale(
    rounds=2,
    tasks=2_500,
    longest_countdown_s=12.0,
    steady_s=60.0,
    steady_rate=1_000,
    beyond_s=60.0,
    burst=100_000,
    immediate_burst=20_000,
    stock_burst=5_000,
    publish_rounds=10,
    publish_calls=200,
    pending=(1_000, 100_000, 1_000_000, 3_000_000),
    mirrored_up_to=100_000,
    transfer_rounds=10,
    memory_pending=100_000,
    worker_pending=1_000_000,
    stock_pending=5_000,
    ready_messages=100_000,
    ready_rounds=15,
    loops=(1, 20, 100),
    fleet_messages=(20, 2_000),
    fleet_s=6.0,
    backlog=20_000,
    backlog_turns=4,
    limit_rounds=2,
    limit_calls=10_000,
    idle_workers=(1, 4),
    idle_s=60.0,
    entries=100_000,
    peer_entries=2_000,
    storm=5_000,
    spread=10_000,
    cluster_rounds=3,
    cluster_tasks=2_400,
    cluster_due=60_000,
    outage_s=5.0,
    metrics_turns=10,
    metrics_tasks=5_000,
    scrape_messages=1_000_000,
    scrape_queues=100,
    scrapes=20,
    web_tasks=1_000_000,
    web_rounds=3,
    web_requests=100,
    web_chunks=20,
    web_tabs_s=60.0,
    unique_keys=1_000_000,
    others_rounds=3,
    others_tasks=1_200,
    others_longest_s=6.0,
    others_backlog=5_000,
    storms_together=False,
)

QUICK = Scale(
    rounds=1,
    tasks=150,
    longest_countdown_s=2.0,
    steady_s=2.0,
    steady_rate=200,
    beyond_s=3.0,
    burst=1_000,
    immediate_burst=1_000,
    stock_burst=500,
    publish_rounds=6,
    publish_calls=100,
    pending=(1_000, 20_000),
    mirrored_up_to=20_000,
    transfer_rounds=3,
    memory_pending=5_000,
    worker_pending=20_000,
    stock_pending=1_000,
    ready_messages=2_000,
    ready_rounds=2,
    loops=(1, 5),
    fleet_messages=(200,),
    fleet_s=3.0,
    backlog=1_000,
    backlog_turns=2,
    limit_rounds=1,
    limit_calls=2_000,
    idle_workers=(1,),
    idle_s=2.0,
    entries=1_000,
    peer_entries=500,
    storm=200,
    spread=200,
    cluster_rounds=1,
    cluster_tasks=240,
    cluster_due=6_000,
    outage_s=2.0,
    metrics_turns=2,
    metrics_tasks=300,
    scrape_messages=20_000,
    scrape_queues=20,
    scrapes=5,
    web_tasks=20_000,
    web_rounds=1,
    web_requests=10,
    web_chunks=2,
    web_tabs_s=6.0,
    unique_keys=5_000,
    others_rounds=1,
    others_tasks=100,
    others_longest_s=1.5,
    others_backlog=200,
    storms_together=True,
)
