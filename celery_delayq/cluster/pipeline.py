"""RoutedPipeline: a pipeline of redis-py whose commands go to the nodes of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from redis.client import NEVER_DECODE, Pipeline

from celery_delayq.cluster.command_keys import cross_slot, name_of
from celery_delayq.cluster.dispatch import Dispatch
from celery_delayq.cluster.node import Node
from celery_delayq.cluster.round_trip import Command
from celery_delayq.cluster.router import Router
from celery_delayq.queue.connections import LOST
from celery_delayq.queue.redirection import is_redirection

#: What redis-py adds to the options of a command, and does not give to the callback.
_NO_OPTIONS = (NEVER_DECODE, "keys")


class RoutedPipeline(Pipeline):
    """A pipeline whose commands go to the nodes of their keys. For one thread.

    Without a transaction, each node gets its commands in one round trip, in order, at the same time as other nodes. A
    node's commands are executed in order, unless their slot moves meanwhile: what a node did not serve is sent again
    one by one, in order.

    - An error is the reply to its command, even one of a lost connection. With `raise_on_error`, the first one is
      raised, but only after everything was sent: rather one of a connection than one of a node.
    - A `WAIT` at the end goes to each node that gets anything, after that, on the same connection. Its reply is the
      least of them. Nodes whose connections were lost do not count: the replies to their commands tell that.

    With a transaction, all keys have to be in one slot. If the slot moves before EXEC, the transaction is sent to the
    other node. There is no WATCH, and redis-py's `Script` needs the client, not a pipeline.

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

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send all commands, and return their replies in order.

        Raises:
            redis.exceptions.ClusterCrossSlotError: a transaction has keys in several slots. Nothing was sent.
            redis.RedisError: see the class and `client.Routed`.
        """
        stack: list[Any] = self.command_stack
        if not stack:
            return []
        is_multi: Any = self.transaction  # here a bool, not the method of `redis.Redis`
        try:
            replies = self._execute_multi(stack) if is_multi or self.explicit_transaction else self._execute_each(stack)
            if raise_on_error:
                for reply in replies:
                    if isinstance(reply, LOST):
                        raise reply
                raise_first: Any = self.raise_first_error
                raise_first(stack, replies)
            return replies
        finally:
            self.reset()

    def immediate_execute_command(self, *args: Any, **options: Any) -> NoReturn:
        """Refuse WATCH.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{name_of(args)}: a pipeline of a Redis Cluster watches no keys; use a script")

    def _execute_each(self, stack: Sequence[Any]) -> list[Any]:
        has_wait = len(stack) > 1 and name_of(stack[-1][0]) == "WAIT"
        sent = stack[:-1] if has_wait else stack
        commands = [Command(args, options, self._router.slot_for(args)) for args, options in sent]
        dispatch = Dispatch(self._router, self.parse_response, stack[-1] if has_wait else None)
        dispatch.send(commands)
        return [command.reply for command in commands] + ([dispatch.waited()] if has_wait else [])

    def _execute_multi(self, stack: Sequence[Any]) -> list[Any]:
        slots = {self._router.slot_for(args) for args, _ in stack} - {None}
        if len(slots) > 1:
            raise cross_slot([args for args, _ in stack])
        return self._router.follow(next(iter(slots), None), partial(self._transact, stack))

    def _transact(self, stack: Sequence[Any], node: Node, asking: bool) -> list[Any]:
        """Send a transaction to a node, and return the replies; nothing is sent twice.

        Raises:
            redis.ResponseError: the node has refused it; nothing was executed.
            redis.ConnectionError, redis.TimeoutError: nobody knows whether it was executed.
        """
        # The replies before the last one only say that a command waits for EXEC.
        commands = [Command(args, name="_") for args in [("MULTI",), *(args for args, _ in stack), ("EXEC",)]]
        Dispatch(self._router, self.parse_response).talk(node, commands, asking)
        errors = [command.reply for command in commands if isinstance(command.reply, Exception)]
        if errors:
            lost = (error for error in errors if isinstance(error, LOST))
            raise next(lost, None) or next(filter(is_redirection, errors), errors[0])
        return [self._called_back(reply, *command) for reply, command in zip(commands[-1].reply, stack, strict=True)]

    def _called_back(self, reply: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        callback = self.response_callbacks.get(args[0])
        if isinstance(reply, Exception) or callback is None:
            return reply
        return callback(reply, **{name: value for name, value in options.items() if name not in _NO_OPTIONS})
