"""RoutedPipeline: a pipeline of redis-py whose commands go to the nodes of their keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from redis import exceptions
from redis.client import NEVER_DECODE, Pipeline

from celery_delayq.cluster.command_keys import cross_slot, keys_of
from celery_delayq.cluster.connecting import connection_to
from celery_delayq.cluster.dispatch import Dispatch, execute
from celery_delayq.cluster.exchange import ASKING, Attached, NodeCommand, Parse
from celery_delayq.cluster.plan import Planned, is_script_load, is_wait, plan
from celery_delayq.cluster.redirection import is_redirection, understood
from celery_delayq.cluster.router import FIRST_PAUSE_S, Router
from celery_delayq.cluster.topology import Node
from celery_delayq.queue.connections import LOST

#: What redis-py adds to the options of a command, and does not give to the callback.
_NO_OPTIONS = (NEVER_DECODE, "keys")


class RoutedPipeline(Pipeline):
    """A pipeline whose commands go to the nodes of their keys. For one thread.

    Without a transaction, each node gets its commands in one round trip, in order, at the same time as other nodes. A
    node's commands are executed in order, unless their slot moves meanwhile: what a node did not serve is sent again
    one by one, in order.

    - An error is the reply to its command, even one of a lost connection. With `raise_on_error`, the first one is
      raised, but only after everything was sent: rather one of a connection than one of a node.
    - `WAIT` goes to each node that the commands before it went to, after them, on the same connection. Its reply is the
      least of them. Nodes whose connections were lost do not count: the replies to their commands tell that.
    - `SCRIPT LOAD` goes first, to each node that any command goes to.

    With a transaction, or after `watch`, all keys have to be in one slot. If the slot moves before EXEC, a transaction
    is sent to the other node; one that watches raises WatchError instead.

    Args:
        router: finds the nodes.
        response_callbacks: see redis-py.
        transaction: whether to send MULTI and EXEC.
        shard_hint: see redis-py.
    """

    def __init__(
        self, router: Router, response_callbacks: Any, transaction: bool = True, shard_hint: Any = None
    ) -> None:
        super().__init__(router.pool, response_callbacks, transaction, shard_hint)
        self._router = router
        #: The slot of the watched keys; None if there are none.
        self._watched: int | None = None

    # -- without a transaction

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send all commands, and return their replies in order.

        Raises:
            redis.exceptions.ClusterCrossSlotError: a transaction has keys in several slots. Nothing was sent.
            redis.WatchError: a watched key has changed, or its slot has moved. Nothing was executed.
            redis.RedisError: see the class and `client.Routed`.
        """
        stack: list[Any] = self.command_stack
        if not stack and not self.watching:
            return []
        is_multi: Any = self.transaction  # here a bool, not the method of `redis.Redis`
        try:
            if is_multi or self.explicit_transaction:
                replies = self._execute_multi(stack)
            else:
                if self.scripts:
                    self.load_scripts()
                replies = self.execute_routed(stack)
            if raise_on_error:
                for reply in replies:
                    if isinstance(reply, LOST):
                        raise reply
                raise_first: Any = self.raise_first_error
                raise_first(stack, replies)
            return replies
        finally:
            self.reset()

    def execute_routed(self, stack: Sequence[Any]) -> list[Any]:
        """Send commands to their nodes, without a transaction, and return their replies.

        Args:
            stack: commands and their options, see redis-py.
        """
        is_attached = [is_wait(args) or is_script_load(args) for args, _ in stack]
        commands: list[Planned | Attached] = []
        for (args, options), attached in zip(stack, is_attached, strict=True):
            if attached and not all(is_attached):
                commands.append(Attached(args, options, is_wait(args)))
                continue
            try:
                commands.append(plan(self._router, args, options))
            except exceptions.ResponseError as exc:
                commands.append(Planned([NodeCommand(args, reply=exc)]))
        Dispatch(self._router, self.parse_response).send(commands)
        return [command.reply for command in commands]

    def load_scripts(self) -> None:
        """Load the scripts that redis-py's `Script` has put into this pipeline, at all masters."""
        for script in self.scripts:
            script.sha = execute(self._router, ("SCRIPT LOAD", script.script), {}, self.parse_response)

    def reset(self) -> None:  # type: ignore[override]
        """Forget everything, see redis-py."""
        super().reset()
        self._watched = None

    # -- with a transaction

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """Send WATCH, or a command after it, see redis-py.

        Raises:
            redis.exceptions.ClusterCrossSlotError: its keys are not all in the slot of the watched keys.
            redis.WatchError: the slot has moved while keys were watched, or the connection was lost.
            redis.RedisError: see `client.Routed`.
        """
        slot = self._slot_of([args])
        if self.connection is None:
            return self._router.follow(slot, partial(self._watch, slot, args, options), can_ask=False)
        at_once: Any = super().immediate_execute_command
        try:
            return at_once(*args, **options)
        except exceptions.ResponseError as exc:
            self._check_moved(understood(exc))
            raise

    def _watch(self, slot: int | None, args: tuple[Any, ...], options: dict[str, Any], node: Node, asking: bool) -> Any:
        self.connection_pool = node.client.connection_pool
        self.connection = connection_to(node)
        at_once: Any = super().immediate_execute_command
        try:
            reply = at_once(*args, **options)
        except BaseException as exc:
            if self.connection is not None:  # redis-py 5 may have given it back
                self.connection_pool.release(self.connection)
                self.connection = None
            if isinstance(exc, LOST):
                self._router.lost(node, exc)
            raise
        self._watched = slot
        return reply

    def _check_moved(self, exc: Exception) -> None:
        """Begin again with another node if a slot has moved while it was watched.

        Raises:
            redis.WatchError: it has.
        """
        if not is_redirection(exc):
            return
        self.reset()
        time.sleep(FIRST_PAUSE_S)  # whoever begins again at once may meet the same
        self._router.refresh()
        raise exceptions.WatchError(f"the hash slot moved while keys were watched: {exc}") from exc

    def _slot_of(self, commands: Sequence[tuple[Any, ...]]) -> int | None:
        """Return the slot of the keys of commands; None if there are none.

        Raises:
            redis.exceptions.ClusterCrossSlotError: they are in several slots, or not in that of the watched keys.
        """
        slots = {self._router.slot_of(key) for args in commands for key in keys_of(*args)}
        if self._watched is not None:
            slots.add(self._watched)
        if len(slots) > 1:
            raise cross_slot(commands)
        return next(iter(slots), None)

    def _execute_multi(self, stack: Sequence[Any]) -> list[Any]:
        slot = self._slot_of([args for args, _ in stack])
        if self.connection is None:
            return self._router.follow(slot, partial(self._execute_multi_at, stack))
        try:
            return self._transact(self.connection, stack)
        except exceptions.ResponseError as exc:
            self._check_moved(exc)
            raise
        except LOST:  # not a WatchError, as redis-py has it: the transaction may have been executed
            self._router.refresh()
            raise

    def _execute_multi_at(self, stack: Sequence[Any], node: Node, asking: bool) -> list[Any]:
        connection = connection_to(node)
        try:
            replies = self._transact(connection, stack, asking=asking)
        except LOST as exc:
            self._router.lost(node, exc)
            raise
        else:
            self._router.answered(node)
            return replies
        finally:
            node.client.connection_pool.release(connection)

    def _transact(self, connection: Any, stack: Sequence[Any], *, asking: bool = False) -> list[Any]:
        """Send a transaction on a connection, and return the replies; nothing is sent twice.

        Raises:
            redis.ResponseError: a node has refused it; nothing was executed.
            redis.WatchError: a watched key has changed; nothing was executed.
            redis.ConnectionError, redis.TimeoutError: nobody knows whether it was executed.
        """
        loads = [("SCRIPT LOAD", script.script) for script in self.scripts]
        first = [*loads, *([ASKING] if asking else []), ("MULTI",)]
        packed = connection.pack_commands([*first, *(args for args, _ in stack), ("EXEC",)])
        is_unread = True
        errors: list[Exception] = []
        parse: Parse = self.parse_response
        try:
            connection.send_packed_command(packed)
            for _ in range(len(first) + len(stack)):
                try:
                    parse(connection, "_")
                except exceptions.ResponseError as exc:
                    errors.append(understood(exc))
            try:
                replies = parse(connection, "_")
            except exceptions.ResponseError as exc:
                errors.append(understood(exc))
            is_unread = False
        finally:
            self.watching = False
            if is_unread:
                connection.disconnect()
        if errors:
            raise next(filter(is_redirection, errors), errors[0])
        if replies is None:
            raise exceptions.WatchError("Watched variable changed.")
        return [self._called_back(reply, *command) for reply, command in zip(replies, stack, strict=True)]

    def _called_back(self, reply: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        callback = self.response_callbacks.get(args[0])
        if isinstance(reply, Exception) or callback is None:
            return reply
        return callback(reply, **{name: value for name, value in options.items() if name not in _NO_OPTIONS})
