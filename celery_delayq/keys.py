"""Names of all Redis keys and channels; nothing else in the package spells one.

Every key that belongs to one broker list is in the hash slot of that list, so scripts can use them together on
Redis Cluster.
"""

from __future__ import annotations

from dataclasses import dataclass


def companion(prefix: str, name: str) -> str:
    """Name a companion key of the broker list `name`.

    Source: Redisson 4.7 `RedissonObject.prefixName`: braces are added unless the name has one already.
    """
    if "{" in name:
        return f"{prefix}:{name}"
    return f"{prefix}:{{{name}}}"


#: Prefix of the names of timeout sets.
TIMEOUT_SET = "redisson_delay_queue_timeout"


def list_of(prefix: str, key: str) -> str | None:
    """Return the broker list whose companion with this prefix `key` is, or None if it is none.

    The lists `q` and `{q}` share their companions; the answer is `q`.
    """
    if not key.startswith(f"{prefix}:"):
        return None
    name = key[len(prefix) + 1 :]
    if name.startswith("{") and name.endswith("}") and "{" not in name[1:]:
        return name[1:-1] or name
    return name if "{" in name else None


@dataclass(frozen=True)
class QueueKeys:
    """The keys and channels of one delayed queue.

    Attributes:
        queue: the broker list, with global key prefix and priority suffix.
        timeout_set: ZSET, entry -> due (ms). Redisson's name.
        delay_list: LIST, entries in order of arrival; only where mirrored. Redisson's name.
        channel: Pub/Sub, the due time of a new head. Redisson's name.
        index: HASH, message id -> where its entry is.
        repeated: ZSET, message ids with where further entries of them are.
        dead: LIST, what could not be delivered.
        transferrer: STRING, which loop transfers this queue punctually.
        transferrer_channel: Pub/Sub, signs of life of that loop. Pub/Sub knows no databases, so it names its own.
        consumers: ZSET, consumer id -> end of its lease (ms); minus the time at which it was given up, if it was.
        schedule: HASH, periodic entry -> its planned occurrence.
    """

    queue: str
    timeout_set: str
    delay_list: str
    channel: str
    index: str
    repeated: str
    dead: str
    transferrer: str
    transferrer_channel: str
    consumers: str
    schedule: str

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
            transferrer=companion("delayq:transfer", name),
            transferrer_channel=companion(f"delayq:transfer_channel:{db}", name),
            consumers=companion("delayq:consumers", name),
            schedule=companion("delayq:schedule", name),
        )

    @property
    def waiting(self) -> tuple[str, str, str, str]:
        """What holds messages that wait, in the order in which scripts take these keys."""
        return self.timeout_set, self.index, self.repeated, self.delay_list

    def in_flight(self, consumer: str) -> str:
        """Name the LIST of what a consumer holds of this queue, the newest first."""
        return f"{companion('delayq:inflight', self.queue)}:{consumer}"


@dataclass(frozen=True)
class RegistryKeys:
    """The keys of the registry; they are in one hash slot.

    Attributes:
        names: SET, broker lists for which something may wait; also the channel that announces new ones.
        retired: ZSET, broker list -> when it left the registry since nothing waited (ms).
    """

    names: str
    retired: str

    @classmethod
    def of(cls, keyprefix: str = "") -> RegistryKeys:
        """Return the keys with kombu's `global_keyprefix`."""
        names = f"{keyprefix}delayq:queues"
        return cls(names, companion("delayq:retired", names))


def hello_channel(db: int = 0) -> str:
    """Name the channel on which new consumers announce themselves."""
    return f"delayq:alive:{db}"


def alive_channel(consumer: str, db: int = 0) -> str:
    """Name the channel to which a consumer is subscribed for as long as its process lives; nothing is published."""
    return f"delayq:alive:{db}:{consumer}"


@dataclass(frozen=True)
class ScheduleKeys:
    """The keys and the channel of the schedule that belong to no queue.

    Attributes:
        definitions: HASH, periodic entry -> its record; an empty name -> how many changes there were.
        configurations: HASH, app and fingerprint of its configuration -> when planners with it were seen.
        errors: HASH, periodic entry -> why it could not be planned.
        channel: Pub/Sub, the number of a change and the name of the entry.
    """

    definitions: str
    configurations: str
    errors: str
    channel: str

    @classmethod
    def of(cls, keyprefix: str = "", db: int = 0) -> ScheduleKeys:
        """Return the keys with kombu's `global_keyprefix`, and the channel for database `db`."""
        return cls(
            definitions=f"{keyprefix}delayq:schedule",
            configurations=f"{keyprefix}delayq:schedule_configurations",
            errors=f"{keyprefix}delayq:schedule_errors",
            channel=f"{keyprefix}delayq:schedule_channel:{db}",
        )
