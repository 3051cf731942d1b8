"""Names of all Redis keys and channels. No other module contains one.

Every key that belongs to one broker list is in the hash slot of that list, so scripts can use them together on
Redis Cluster.
"""

from __future__ import annotations

from dataclasses import dataclass


def companion(prefix: str, name: str) -> str:
    """Return the name of a companion key of the broker list `name`.

    Source: Redisson 4.7 `RedissonObject.prefixName`: it adds braces unless the name already contains one.
    """
    if "{" in name:
        return f"{prefix}:{name}"
    return f"{prefix}:{{{name}}}"


def without_priority(name: str) -> str:
    """Return the list for priority 0 of the queue to which a list belongs, if kombu's separator is the default.

    Source: kombu 5.7 `transport.redis.Channel._q_for_pri` and `sep`.
    """
    queue, separator, step = name.rpartition("\x06\x16")
    return queue if separator and queue and step.isdecimal() else name


#: Prefixes of the names of timeout sets and of in-flight lists.
TIMEOUT_SET, IN_FLIGHT = "redisson_delay_queue_timeout", "delayq:inflight"


def list_of(prefix: str, key: str) -> str | None:
    """Return the broker list that `key`, with this prefix, is a companion of; None if it is not a companion.

    The lists `q` and `{q}` share their companions; the answer is `q`.
    """
    if not key.startswith(f"{prefix}:"):
        return None
    name = key[len(prefix) + 1 :]
    if name.startswith("{") and name.endswith("}") and "{" not in name[1:]:
        return name[1:-1] or name
    return name if "{" in name else None


#: Prefix of the names of the keys of unique and throttled keys.
UNIQUE = "delayq:unique"


@dataclass(frozen=True)
class QueueKeys:
    """The keys and channels of one delayed queue.

    Attributes:
        queue: the broker list, with global key prefix and priority suffix.
        timeout_set: ZSET, entry -> due (ms). Redisson's name.
        delay_list: LIST, entries in order of arrival; only if mirrored. Redisson's name.
        channel: Pub/Sub, the due time of a new head. Redisson's name.
        index: HASH, message id -> place of its entry.
        repeated: ZSET, message ids with the places of their further entries.
        dead: ZSET, dead letter -> when the message was set aside (ms).
        records: HASH, dead letter -> its record.
        failed: ZSET, failed task that is kept -> when it was kept (ms).
        failed_records: HASH, failed task -> its record.
        transferrer: STRING, the loop that transfers this queue punctually.
        transferrer_channel: Pub/Sub, signs of life of that loop. Pub/Sub has no databases, so the name includes one.
        consumers: ZSET, consumer id -> end of its lease (ms); or, negated, the time at which it was given up (ms).
        schedule: HASH, periodic entry -> its planned occurrence.
        holds: HASH, unique key -> the task that holds it; one for all priorities of a queue.
        taken: STRING, how many ready messages were taken back lately.
        metrics: HASH, what was counted -> how often so far.
    """

    queue: str
    timeout_set: str
    delay_list: str
    channel: str
    index: str
    repeated: str
    dead: str
    records: str
    failed: str
    failed_records: str
    transferrer: str
    transferrer_channel: str
    consumers: str
    schedule: str
    holds: str
    taken: str
    metrics: str

    @classmethod
    def of(cls, name: str, db: int = 0) -> QueueKeys:
        """Return the keys of the delayed queue of broker list `name` in database `db`."""
        return cls(
            queue=name,
            timeout_set=companion(TIMEOUT_SET, name),
            delay_list=companion("redisson_delay_queue", name),
            channel=companion("redisson_delay_queue_channel", name),
            index=companion("delayq:index", name),
            repeated=companion("delayq:repeated", name),
            dead=companion("delayq:dead", name),
            records=companion("delayq:dead_records", name),
            failed=companion("delayq:failed", name),
            failed_records=companion("delayq:failed_records", name),
            transferrer=companion("delayq:transfer", name),
            transferrer_channel=companion(f"delayq:transfer_channel:{db}", name),
            consumers=companion("delayq:consumers", name),
            schedule=companion("delayq:schedule", name),
            holds=companion(UNIQUE, without_priority(name)),
            taken=companion("delayq:taken", name),
            metrics=companion("delayq:metrics", name),
        )

    @property
    def waiting(self) -> tuple[str, str, str, str]:
        """The keys that hold waiting messages, in the order in which scripts expect them."""
        return self.timeout_set, self.index, self.repeated, self.delay_list

    @property
    def dead_letters(self) -> tuple[str, str]:
        """The keys that hold dead letters, in the order in which scripts expect them."""
        return self.dead, self.records

    @property
    def failed_tasks(self) -> tuple[str, str]:
        """The keys that hold failed tasks, in the order of `dead_letters`."""
        return self.failed, self.failed_records

    def in_flight(self, consumer: str) -> str:
        """Return the name of the LIST of messages of this queue that a consumer holds, newest first."""
        return f"{companion(IN_FLIGHT, self.queue)}:{consumer}"

    def published(self, publisher: str) -> str:
        """Return the name of the STRING of what a publisher stored last in this queue."""
        return f"{companion('delayq:published', self.queue)}:{publisher}"

    def turns(self, throttle_key: bytes) -> str:
        """Return the name of the STRING of the turns of a throttled key, given by the 16 bytes that represent it."""
        return f"{self.holds}:{throttle_key.hex()}"

    def history(self, step_s: int, since_s: int) -> str:
        """Return the name of the HASH of sums over `step_s` seconds, in the block of time that begins at `since_s`."""
        return f"{self.metrics}:{step_s}:{since_s}"


def registry(keyprefix: str = "") -> str:
    """Return the name of the ZSET of the lists that may have waiting messages: list -> when it was last used (ms).

    The channel that announces new ones has the same name.

    Args:
        keyprefix: kombu's `global_keyprefix`.
    """
    return f"{keyprefix}delayq:queues"


def counted(keyprefix: str = "") -> str:
    """Return the name of the ZSET of the lists for which something was counted: list -> when it last was (s).

    Args:
        keyprefix: kombu's `global_keyprefix`.
    """
    return f"{keyprefix}delayq:metrics"


def paused_key(keyprefix: str = "") -> str:
    """Return the name of the SET of the paused queues, by kombu's names.

    Args:
        keyprefix: kombu's `global_keyprefix`.
    """
    return f"{keyprefix}delayq:paused"


def hello_channel(db: int = 0) -> str:
    """Return the name of the channel on which new consumers announce themselves."""
    return f"delayq:alive:{db}"


def alive_channel(consumer: str, db: int = 0) -> str:
    """Return the name of the channel that a consumer subscribes to while its process lives. It carries no messages."""
    return f"delayq:alive:{db}:{consumer}"


@dataclass(frozen=True)
class ScheduleKeys:
    """The keys and the channel of the schedule that do not belong to a queue.

    On a cluster, they are in one hash slot: so planners lose their subscription together with the node that has the
    records, and read them again, since their numbers may begin anew from an earlier one.

    Attributes:
        definitions: HASH, periodic entry -> its record; the empty name -> number of changes so far.
        configurations: HASH, app and fingerprint of its configuration -> when its planners were seen.
        errors: HASH, periodic entry -> why it could not be planned.
        channel: Pub/Sub, the number of each change and the name of the entry.
    """

    definitions: str
    configurations: str
    errors: str
    channel: str

    @classmethod
    def of(cls, keyprefix: str = "", db: int = 0, *, together: bool = False) -> ScheduleKeys:
        """Return the keys with kombu's `global_keyprefix`, and the channel for database `db`.

        Args:
            keyprefix: the prefix.
            db: the number of the database.
            together: whether all keys have to be in one hash slot.
        """
        definitions = f"{keyprefix}delayq:schedule"

        def beside(name: str) -> str:
            return companion(name, definitions) if together else f"{keyprefix}{name}"

        return cls(
            definitions=definitions,
            configurations=beside("delayq:schedule_configurations"),
            errors=beside("delayq:schedule_errors"),
            channel=f"{keyprefix}delayq:schedule_channel:{db}",
        )
