"""The faults: what is done to a running scene, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from tests.soak.cluster import ClusterScene, cut_after_new_children, strike_cluster
from tests.soak.messages import send_hostile, send_poison
from tests.soak.proxy import Drop
from tests.soak.refusals import MAY_RELOAD, busy, full, loading, no_replicas, read_only, refusing, unsaved
from tests.soak.scene import Scene
from tests.soak.setting import Setting
from tests.state import out_of_memory

#: A lease that is short enough to see its end.
SHORT_LEASE_S = 3.0

#: Longer than that, by more than anybody needs to notice.
_TOO_LONG_S = 5.0

#: How long flaps last: all of them shorter than the lease of 30 s.
_FLAPS_S = (3.0, 1.0, 5.0, 2.0, 10.0, 20.0)

#: What a server refuses, in turns: acknowledgements, scripts, waiting for messages.
_COMMANDS = ("lrem", "evalsha", "blmove")

#: A proxy drops what was idle for longer than any connection of a worker may be, in seconds.
_IDLE_S = 25.0

#: Far shorter than half a lease, and long enough to see who is gone.
_SHORT_LIFE_S = 5.0


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: how to call it.
        sentence: what happens.
        strike: does it to the scene, once; takes the number of the strike. Returns when the scene is whole again.
        setting: the scene that it needs.
        scene: makes the scene.
        every_s: from a strike to the next one, if it takes no longer.
        seconds: how long it runs unless somebody says how long.
        latest_s: so much later than due no task may begin, besides the time without any worker; None for no limit.
        logs_errors: whether workers log tracebacks.
        may_lose: whether tasks may be lost, if workers say so.
    """

    name: str
    sentence: str
    strike: Callable[[Any, int], None]
    setting: Setting = field(default_factory=Setting)
    scene: Callable[[Setting], Scene] = Scene
    every_s: float = 4.0
    seconds: float = 20.0
    latest_s: float | None = None
    logs_errors: bool = False
    may_lose: bool = False


def kill_worker(scene: Scene, number: int) -> None:
    victim = scene.workers[number % 2]
    scene.kill([victim])
    scene.start([victim])


def suspend_worker(scene: Scene, number: int) -> None:
    with scene.suspended(scene.workers[number % 2]):
        time.sleep(_TOO_LONG_S)


def kill_clients(wanted: Callable[[dict[str, Any]], bool]) -> Callable[[Scene, int], None]:
    return lambda scene, number: scene.cut(wanted)


def reset_after_new_children(scene: Scene, number: int) -> None:
    scene.replace_children()
    scene.cut()


def flush(scene: Scene, number: int) -> None:
    scene.flush()


def drop_idle(how: Drop) -> Callable[[Scene, int], None]:
    """From the first strike on, a proxy drops idle connections."""
    return lambda scene, number: scene.proxy.drop_idle(_IDLE_S, how)


def waits(line: dict[str, Any]) -> bool:
    return line["cmd"] in ("blmove", "brpop")


def fetches(line: dict[str, Any]) -> bool:
    return line["cmd"] in ("evalsha", "eval", "lrem") and not listens(line)


def listens(line: dict[str, Any]) -> bool:
    return "P" in line["flags"]


def is_normal(line: dict[str, Any]) -> bool:
    return not listens(line)


def crash_server(scene: Scene, number: int) -> None:
    scene.broker.kill()
    time.sleep(0.5)
    scene.broker.start()


def restart_server(scene: Scene, number: int) -> None:
    scene.broker.stop()  # SIGTERM is SHUTDOWN
    time.sleep(0.5)
    scene.broker.start()


def flush_scripts(scene: Scene, number: int) -> None:
    with scene.client() as client:
        client.script_flush()


def slow_network(scene: Scene, number: int) -> None:
    scene.proxy.delay(0.1)
    time.sleep(3)
    scene.proxy.delay(0)


def cut_network(scene: Scene, number: int) -> None:
    scene.proxy.cut()


def silent_network(scene: Scene, number: int) -> None:
    """Longer than the lease: the others take over what the worker holds."""
    scene.cut_off(scene.workers[0])
    scene.proxy.silence()
    time.sleep(_TOO_LONG_S)
    scene.proxy.flow()


def short_silence(scene: Scene, number: int) -> None:
    scene.proxy.silence()
    time.sleep(2)
    scene.proxy.flow()


def fail_over(scene: Scene, number: int) -> None:
    scene.fail_over()


def fail_over_as_planned(scene: Scene, number: int) -> None:
    scene.fail_over_as_planned()


def fail_over_suddenly(scene: Scene, number: int) -> None:
    """Every other time, the replica lacks the last two seconds; otherwise, what was on the way."""
    scene.fail_over_suddenly(lagging=number % 2 == 0)


def fill_memory(scene: Scene, number: int) -> None:
    with scene.client() as client, out_of_memory(client):
        time.sleep(2)


def stop_everything(scene: Scene, number: int) -> None:
    scene.kill(scene.workers, with_broker=True)
    scene.broker.start()
    scene.start(scene.workers)


def flap(scene: Scene, number: int) -> None:
    """Shorter than the lease: nobody takes over what the worker holds, and a task that runs runs on."""
    seconds = _FLAPS_S[number % len(_FLAPS_S)]
    scene.occupy(scene.workers[0], seconds + 2)
    scene.proxy.refuse()
    time.sleep(seconds)
    scene.proxy.accept()


def refuse_commands(scene: Scene, number: int) -> None:
    command = _COMMANDS[number % len(_COMMANDS)]
    with scene.client() as client:
        client.execute_command("ACL SETUSER", "default", f"-{command}")
        time.sleep(2)
        client.execute_command("ACL SETUSER", "default", f"+{command}")


def refuse_clients(scene: Scene, number: int) -> None:
    scene.occupy(scene.workers[0], 5)
    with scene.client() as client:
        before = client.config_get("maxclients")["maxclients"]
        client.config_set("maxclients", 1)  # those that are connected stay
        scene.proxy.cut()
        time.sleep(3)
        client.config_set("maxclients", before)


def demote(scene: Scene, number: int) -> None:
    """The connections of every other strike are cut, so that workers connect to what is no master."""
    with scene.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        if number % 2 == 0:
            client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.5)
        client.execute_command("REPLICAOF", "NO", "ONE")


def kill_all(scene: Scene, number: int) -> None:
    """They live for less than half a lease, and there is never one that has seen the others die."""
    since_s = time.monotonic()
    scene.kill(scene.workers)
    scene.start(scene.workers)
    scene.absent_s = max(scene.absent_s, time.monotonic() - since_s)
    time.sleep(_SHORT_LIFE_S)


_SHORT = Setting(lease_s=SHORT_LEASE_S)
_PROXY = Setting(has_proxy=True)
_NEW_CHILDREN = Setting(options=("--max-tasks-per-child=30",))

#: Without a backlog: there, an occurrence may wait until the next one finds its key held, or until it expires.
_PERIODIC = Setting(has_periodic=True, rate=10)

#: A connection that the proxy drops without a word would show as a task that begins late.
_IDLE = Setting(has_proxy=True, rate=2)
_IDLE_LATE_S = 5.0

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill-prefork", "a prefork worker is killed (SIGKILL)", kill_worker),
        Fault("kill-threads", "a worker with threads is killed", kill_worker, Setting(pool="threads")),
        Fault("kill-solo", "a solo worker is killed", kill_worker, Setting(pool="solo", rate=60)),
        Fault(
            "suspend",
            "a worker is suspended for longer than its lease (SIGSTOP, SIGCONT)",
            suspend_worker,
            _SHORT,
            every_s=10,
        ),
        Fault("client-waiting", "CLIENT KILL of connections that wait for messages", kill_clients(waits), every_s=0.5),
        Fault("client-fetching", "CLIENT KILL of connections that fetch", kill_clients(fetches), every_s=0.5),
        Fault("client-pubsub", "CLIENT KILL of subscribed connections", kill_clients(listens), every_s=1.5),
        Fault("client-normal", "CLIENT KILL of all normal connections", kill_clients(is_normal), every_s=1.5),
        Fault(
            "client-threads",
            "CLIENT KILL of all normal connections of workers with threads",
            kill_clients(is_normal),
            Setting(pool="threads"),
            every_s=1.5,
        ),
        Fault("redis-killed", "Redis is killed and started again (AOF, fsync always)", crash_server),
        Fault("redis-restarted", "Redis is shut down and started again", restart_server),
        Fault("script-flush", "SCRIPT FLUSH", flush_scripts, every_s=0.2),
        Fault("network-slow", "a worker's network is slow: 100 ms each way", slow_network, _PROXY),
        Fault("network-cut", "a worker's connections are cut", cut_network, _PROXY, every_s=1.5),
        Fault("network-silent", "a worker's network delivers nothing for 2 s", short_silence, _PROXY),
        Fault(
            "network-lost",
            "a worker's network delivers nothing for longer than its lease",
            silent_network,
            Setting(has_proxy=True, lease_s=SHORT_LEASE_S),
            every_s=10,
        ),
        Fault("failover", "Sentinel promotes the replica", fail_over, Setting(has_sentinel=True), every_s=20),
        Fault(
            "unclean-failover",
            "Sentinel promotes a replica that lacks something; publishers wait for replicas",
            fail_over_suddenly,
            Setting(has_sentinel=True, replicas=1),
            seconds=60.0,
        ),
        Fault(
            "unclean-failover-0",
            "the same, but publishers do not wait: workers say what was lost",
            fail_over_suddenly,
            Setting(has_sentinel=True),
            seconds=60.0,
            may_lose=True,
        ),
        Fault(
            "planned-failover",
            "SENTINEL FAILOVER; publishers wait for replicas",
            fail_over_as_planned,
            Setting(has_sentinel=True, replicas=1),
            every_s=20,
            seconds=60.0,
        ),
        Fault(
            "planned-failover-0",
            "the same, but publishers do not wait",
            fail_over_as_planned,
            Setting(has_sentinel=True),
            every_s=20,
            seconds=60.0,
            may_lose=True,
        ),
        Fault("out-of-memory", "Redis is out of memory for 2 s", fill_memory),
        Fault("full-stop", "all workers and Redis are killed, and started again", stop_everything, _SHORT),
        Fault(
            "recovery",
            "15 SIGKILLs in 60 s of two prefork workers at 150 tasks/s",
            kill_worker,
            seconds=60.0,
        ),
        Fault(
            "flaps",
            "a worker's connections are cut, and new ones refused for 1 to 20 s",
            flap,
            _PROXY,
            seconds=60.0,
        ),
        Fault("refusal", "Redis refuses a command for 2 s (ACL)", refuse_commands),
        Fault(
            "maxclients", "a worker's connections are cut, and maxclients is reached for 3 s", refuse_clients, _PROXY
        ),
        Fault("demotion", "Redis is a replica for half a second", demote),
        Fault(
            "crash-loop",
            "all workers are killed as soon as they have worked for 5 s, with a lease of 30 s",
            kill_all,
            Setting(rate=60),
            latest_s=10.0,
        ),
        Fault("hostile", "malformed messages arrive among good ones", send_hostile, logs_errors=True),
        Fault(
            "poison",
            "a task kills its worker whenever it runs; supervised workers",
            send_poison,
            Setting(rate=60, delivery_limit=3),
        ),
        Fault("flushdb", "FLUSHDB", flush, every_s=3.0),
        Fault(
            "children",
            "all connections of workers are reset, each time after children of their pools were replaced",
            reset_after_new_children,
            _NEW_CHILDREN,
            every_s=1.5,
        ),
        *(
            Fault(
                f"idle-{how}",
                f"a worker's proxy drops connections that are idle for {_IDLE_S:g} s: {how}",
                drop_idle(how),
                _IDLE,
                every_s=30.0,
                seconds=90.0,
                latest_s=_IDLE_LATE_S,
            )
            for how in get_args(Drop)
        ),
        *(
            Fault(
                f"refused-{name}",
                f"{(refusal.__doc__ or '').rstrip('.')}, for 1 to 60 s, while workers run, start and reconnect",
                refusing(refusal),
                Setting(has_proxy=True, server=MAY_RELOAD if refusal is loading else ()),
                every_s=6.0,
                seconds=300.0,
            )
            for name, refusal in (
                ("noreplicas", no_replicas),
                ("oom", full),
                ("misconf", unsaved),
                ("busy", busy),
                ("readonly", read_only),
                ("loading", loading),
            )
        ),
        Fault(
            "periodic-killed",
            "a worker is killed while periodic tasks run with each option",
            kill_worker,
            _PERIODIC,
            every_s=6.0,
        ),
        Fault(
            "periodic-reset",
            "all connections of workers are reset while periodic tasks run with each option",
            kill_clients(lambda line: True),
            _PERIODIC,
        ),
        Fault(
            "cluster-children",
            "all connections to a node of a Redis Cluster are reset after children of the pools were replaced",
            cut_after_new_children,
            replace(_NEW_CHILDREN, rate=60),
            scene=ClusterScene,
            every_s=3.0,
        ),
        Fault(
            "cluster",
            "nodes of a Redis Cluster and workers are killed, suspended and cut off; slots move, replicas take over",
            strike_cluster,
            Setting(replicas=1, rate=60),
            scene=ClusterScene,
            every_s=6,
            seconds=120.0,
        ),
    )
}

#: Those that stock Celery can be compared with: it knows no Redis Cluster, nor our periodic tasks.
STOCK_FAULTS = {
    name: fault for name, fault in FAULTS.items() if fault.scene is Scene and not fault.setting.has_periodic
}
