"""Dispatch: sends commands to their nodes, in one round trip to each, and again only what a node did not execute."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from celery_delayq.cluster.node import Address, Node, NotSent
from celery_delayq.cluster.round_trip import ASKING, UNSENT, Command, Parse, RoundTrip
from celery_delayq.cluster.router import NodeHangs, Router
from celery_delayq.queue.connections import LOST
from celery_delayq.queue.redirection import is_redirection


class Dispatch:
    """Sends a command, or those of a pipeline. Used once. Nothing is sent again to a node whose connection was lost.

    Args:
        router: finds the nodes.
        parse: parses replies.
        wait: arguments and options of a WAIT. Each node to which anything is sent gets it, after that.
    """

    def __init__(
        self, router: Router, parse: Parse, wait: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ) -> None:
        self._router = router
        self._parse = parse
        self._wait = wait
        #: Replies to WAIT of the nodes that have served anything.
        self._waited: list[Any] = []
        #: When to stop trying, monotonic time in seconds.
        self._until = time.monotonic() + router.patience_s
        #: Nodes whose connections were lost, or could not be opened, and the errors.
        self._lost: dict[Address, Exception] = {}

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
        trip = self._trip(node)
        trip.commands += [*([Command(ASKING)] if asking else []), *commands]
        trip.run()
        self._look_at(trip)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in one round trip to each node, and again one by one what a node did not get, or did not serve.

        Args:
            commands: their replies are set. An error is a reply, too.

        Raises:
            redis.RedisError, ConfigurationError: nothing was sent: the slots are not known yet, or an argument is bad.
        """
        trips = self._trips(commands)
        opened: list[RoundTrip] = []
        try:
            for trip in trips:
                try:
                    trip.open()
                    opened.append(trip)
                except NotSent as exc:
                    self._lose(trip.node, exc.error)
                except LOST as exc:  # the pool has no connection left
                    trip.fail(exc)
            for trip in opened:
                trip.send()
            for trip in opened:
                trip.read()
        finally:
            for trip in trips:
                trip.close()
        for trip in opened:
            self._look_at(trip)
        for command in commands:
            if command.reply is UNSENT or is_redirection(command.reply):
                self.send_one(command)

    def waited(self) -> Any:
        """Return the reply to WAIT: the least, or an error."""
        # Whoever waits for a lost node knows: the replies to its commands are errors, too.
        heard = [reply for reply in self._waited if not isinstance(reply, LOST)]
        errors = [reply for reply in heard if isinstance(reply, Exception)]
        return errors[0] if errors else min(heard, default=0)

    def _trip(self, node: Node) -> RoundTrip:
        return RoundTrip(node, self._parse, None if self._wait is None else Command(*self._wait))

    def _trips(self, commands: Sequence[Command]) -> list[RoundTrip]:
        """Return what is to be sent to each node."""
        trips: dict[Address, RoundTrip] = {}
        for command in commands:
            try:
                node = self._router.node_for(command.slot, trips)
            except (exceptions.ClusterDownError, NodeHangs) as exc:
                command.reply = exc
                continue
            if node.address not in trips:
                trips[node.address] = self._trip(node)
            trips[node.address].commands.append(command)
        return list(trips.values())

    def _look_at(self, trip: RoundTrip) -> None:
        """Find out who serves the slots if a node was lost, or is no longer a master."""
        served = (it for it in trip.commands if it.args != ASKING and not is_redirection(it.reply))
        if trip.wait is not None and any(served):
            self._waited.append(trip.wait.reply)
        if trip.lost is not None:
            self._lose(trip.node, trip.lost)
            return
        self._router.answered(trip.node)
        if any(isinstance(command.reply, exceptions.ReadOnlyError) for command in trip.commands):
            self._router.refresh()

    def _lose(self, node: Node, error: Exception) -> None:
        self._lost[node.address] = error
        self._router.lost(node, error)
