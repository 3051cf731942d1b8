"""Dispatch: sends commands to their nodes, in one round trip to each, and again only what a node did not execute."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from celery_delayq.cluster.connecting import NotSent
from celery_delayq.cluster.exchange import ASKING, UNSENT, Attached, Exchange, NodeCommand, Parse
from celery_delayq.cluster.plan import Planned, plan
from celery_delayq.cluster.redirection import is_redirection
from celery_delayq.cluster.router import NodeHangs, Router
from celery_delayq.cluster.topology import Address, Node
from celery_delayq.queue.connections import LOST


def execute(router: Router, args: tuple[Any, ...], options: dict[str, Any], parse: Parse) -> Any:
    """Send a command to the nodes that serve its keys, and return the reply.

    Raises:
        redis.RedisError: see `client.Routed`.
    """
    planned = plan(router, args, options)
    dispatch = Dispatch(router, parse)
    if len(planned.parts) == 1 and not isinstance(planned.parts[0].where, Address):
        dispatch.send_one(planned.parts[0])
    else:
        dispatch.send([planned])
    reply = planned.reply
    if isinstance(reply, Exception):
        raise reply
    return reply


class Dispatch:
    """Sends a command, or those of a pipeline. Used once. Nothing is sent again to a node whose connection was lost.

    Args:
        router: finds the nodes.
        parse: parses replies.
    """

    def __init__(self, router: Router, parse: Parse) -> None:
        self._router = router
        self._parse = parse
        #: When to stop trying, monotonic time in seconds.
        self._until = time.monotonic() + router.patience_s
        #: Nodes whose connections were lost, and the errors.
        self._lost: dict[Address, Exception] = {}
        #: Nodes that refused a connection.
        self._refused: set[Address] = set()

    def send_one(self, command: NodeCommand, attached: Sequence[Attached] = ()) -> None:
        """Send a command to the node of its slot, or the home node, and follow redirections.

        Args:
            command: its reply is set, which is also the error of a node, or of a lost connection.
            attached: what its node gets with it.
        """

        def send(node: Node, asking: bool) -> None:
            if node.address in self._lost:
                raise self._lost[node.address]
            exchange = Exchange(node, self._parse, attached)
            command.reply = UNSENT
            exchange.add(*([NodeCommand(ASKING)] if asking else []), command)
            for wait in attached:
                if wait.is_wait:
                    exchange.attach(wait)
            try:
                exchange.open()
                exchange.send()
                exchange.read()
            finally:
                exchange.close()
            self._look_at(exchange)
            if is_redirection(command.reply):
                raise command.reply

        assert not isinstance(command.where, Address)
        try:
            self._router.follow(command.where, send, until=self._until)
        except (exceptions.RedisError, OSError) as exc:
            command.reply = exc

    def send(self, commands: Sequence[Planned | Attached]) -> None:
        """Send commands in one round trip to each node, and again one by one what a node did not serve.

        Args:
            commands: their replies are set. An error is a reply, too.

        Raises:
            redis.RedisError, ConfigurationError: nothing was sent: the slots are not known yet, or an argument is bad.
        """
        while any(part.reply is UNSENT for command in commands for part in _parts(command)):
            self._send_round(commands)
        for number, command in enumerate(commands):
            for part in _parts(command):
                if is_redirection(part.reply) and not isinstance(part.where, Address):
                    before = [it for it in commands[:number] if isinstance(it, Attached) and not it.is_wait]
                    after = [it for it in commands[number:] if isinstance(it, Attached)]
                    self.send_one(part, [*before, *after])
        for command in commands:
            if isinstance(command, Attached) and not command.replies + command.idle:  # no node could be reached
                replies = (part.reply for other in commands for part in _parts(other))
                command.replies = [reply for reply in replies if isinstance(reply, LOST)][:1]

    def _send_round(self, commands: Sequence[Planned | Attached]) -> None:
        """Send what was not sent yet. What a node did not get may remain, for another node."""
        exchanges = self._exchanges(commands)
        opened: list[Exchange] = []
        try:
            for exchange in exchanges:
                try:
                    exchange.open()
                    opened.append(exchange)
                except NotSent as exc:
                    self._refuse(exchange, exc.error)
                except LOST as exc:  # the pool has no connection left
                    exchange.fail(exc)
            for exchange in opened:
                exchange.send()
            for exchange in opened:
                exchange.read()
        finally:
            for exchange in exchanges:
                exchange.close()
        for exchange in opened:
            self._look_at(exchange)

    def _exchanges(self, commands: Sequence[Planned | Attached]) -> list[Exchange]:
        """Return what is to be sent to each node."""
        exchanges: dict[Address, Exchange] = {}
        attached = [command for command in commands if isinstance(command, Attached)]
        for command in commands:
            for part in _parts(command):
                if part.reply is not UNSENT:
                    continue
                try:
                    node = self._router.node_for(part.where, exchanges)
                except (exceptions.ClusterDownError, NodeHangs) as exc:
                    part.reply = exc
                    continue
                if node.address not in exchanges:
                    exchanges[node.address] = Exchange(node, self._parse, attached)
                exchanges[node.address].add(part)
            if isinstance(command, Attached) and command.is_wait:
                for exchange in exchanges.values():
                    exchange.attach(command)
        return list(exchanges.values())

    def _refuse(self, exchange: Exchange, error: Exception) -> None:
        """Make an error the reply to all commands for a node that refuses connections and has no successor."""
        self._refused.add(exchange.node.address)
        self._router.lost(exchange.node, error)
        for command in exchange.commands:
            if not self._router.has_other(command.where, self._refused):
                command.reply = error

    def _look_at(self, exchange: Exchange) -> None:
        """Find out who serves the slots if a node was lost, or is no longer a master."""
        if exchange.lost is not None:
            self._lost[exchange.node.address] = exchange.lost
            self._router.lost(exchange.node, exchange.lost)
            return
        self._router.answered(exchange.node)
        if any(isinstance(command.reply, exceptions.ReadOnlyError) for command in exchange.commands):
            self._router.refresh()


def _parts(command: Planned | Attached) -> Sequence[NodeCommand]:
    return command.parts if isinstance(command, Planned) else ()
