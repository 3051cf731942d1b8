"""Dispatch: sends commands to their nodes, in one round trip to each, and again only what a node did not execute."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redis import exceptions

from celery_delayq.cluster.exchange import ASKING, UNSENT, Command, Exchange, Parse, Wait
from celery_delayq.cluster.node import Address, Node, NotSent
from celery_delayq.cluster.router import NodeHangs, Router
from celery_delayq.queue.connections import LOST
from celery_delayq.queue.redirection import is_redirection


class Dispatch:
    """Sends a command, or those of a pipeline. Used once. Nothing is sent again to a node whose connection was lost.

    Args:
        router: finds the nodes.
        parse: parses replies.
        wait: what each node gets after its commands.
    """

    def __init__(self, router: Router, parse: Parse, wait: Wait | None = None) -> None:
        self._router = router
        self._parse = parse
        self._wait = wait
        #: When to stop trying, monotonic time in seconds.
        self._until = time.monotonic() + router.patience_s
        #: Nodes whose connections were lost, and the errors.
        self._lost: dict[Address, Exception] = {}
        #: Nodes that refused a connection.
        self._refused: set[Address] = set()

    def send_one(self, command: Command) -> None:
        """Send a command to the node of its slot, or the home node, and follow redirections.

        Args:
            command: its reply is set, which is also the error of a node, or of a lost connection.
        """

        def send(node: Node, asking: bool) -> None:
            if node.address in self._lost:
                raise self._lost[node.address]
            command.reply = UNSENT
            self.talk(node, [command], asking)
            if is_redirection(command.reply):
                raise command.reply

        try:
            self._router.follow(command.slot, send, until=self._until)
        except (exceptions.RedisError, OSError) as exc:
            command.reply = exc

    def talk(self, node: Node, commands: Sequence[Command], asking: bool = False) -> None:
        """Send commands to a node, and set their replies.

        Args:
            node: the node.
            commands: what to send.
            asking: whether to send ASKING first.

        Raises:
            NotSent: no connection could be opened.
            redis.ConnectionError: the pool has none left.
        """
        exchange = Exchange(node, self._parse, self._wait)
        exchange.commands += [*([Command(ASKING)] if asking else []), *commands]
        exchange.run()
        self._look_at(exchange)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in one round trip to each node, and again one by one what a node did not serve.

        Args:
            commands: their replies are set. An error is a reply, too.

        Raises:
            redis.RedisError, ConfigurationError: nothing was sent: the slots are not known yet, or an argument is bad.
        """
        while any(command.reply is UNSENT for command in commands):
            self._send_round(commands)
        for command in commands:
            if is_redirection(command.reply):
                self.send_one(command)

    def _send_round(self, commands: Sequence[Command]) -> None:
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

    def _exchanges(self, commands: Sequence[Command]) -> list[Exchange]:
        """Return what is to be sent to each node."""
        exchanges: dict[Address, Exchange] = {}
        for command in commands:
            if command.reply is not UNSENT:
                continue
            try:
                node = self._router.node_for(command.slot, exchanges)
            except (exceptions.ClusterDownError, NodeHangs) as exc:
                command.reply = exc
                continue
            if node.address not in exchanges:
                exchanges[node.address] = Exchange(node, self._parse, self._wait)
            exchanges[node.address].commands.append(command)
        return list(exchanges.values())

    def _refuse(self, exchange: Exchange, error: Exception) -> None:
        """Make an error the reply to all commands for a node that refuses connections and has no successor."""
        self._refused.add(exchange.node.address)
        self._router.lost(exchange.node, error)
        for command in exchange.commands:
            if not self._router.has_other(command.slot, self._refused):
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
