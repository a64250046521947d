"""One look at the queue and the replicas, as the dispatcher's decisions need it."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from core.fair_share import Lift, charge, lift
from core.fleet import Fleet, Replica
from core.lanes import Lane, Priority, parse_length_classes
from core.order import FIFO, Head, Places
from core.pace import Pace
from core.prefix import Streak, by_prefix
from core.slots import Kind, SlotRules, parse_ceilings
from services.dispatch import View, read_heads, read_mates, read_oldest
from storage.outbox import Outgoing
from storage.queue_heads import Group, Waiting

BUSY_S = 0.1  # between two looks while something waits; what lies ahead in the broker lasts for longer
CALM_S = 1.0  # while only batch work waits and enough of it lies ahead
_LEAST_HEADS = 4  # read of each group: its tenant may be the only one with room
_MOST_HEADS = 512
_READY = "ready"
_NONE = Pace()


class Queue:
    """See the module. Sending takes room in `fleets`, by model."""

    def __init__(self, view: View, paces: Mapping[str, Pace], *, fifo: bool) -> None:
        self.view, self._paces, self._fifo = view, paces, fifo
        self.fleets = self._build_fleets()
        self.places = self._count_places()
        self._full_before = frozenset(one for one in view.running_bounds if self.places.none_for(one))
        self._read: dict[str, Waiting] = {}
        self._going_on = {
            (group.lane.model, self._kind(group.lane))
            for group in view.groups
            if self.fleets[group.lane.model].serves(group.lane.length_class)
        }
        self._ran_short = any(self.fleets[model].runs_short(kind) for model, kind in self._going_on)
        self._was_full = {model: fleet.saturated() for model, fleet in self.fleets.items()}

    def _build_fleets(self) -> dict[str, Fleet]:
        held: dict[str, dict[Kind, int]] = {}
        for one in self.view.in_flight:
            if one.worker is not None:
                kinds = held.setdefault(one.worker, {})
                kind = self._kind(one.lane)
                kinds[kind] = kinds.get(kind, 0) + one.tasks
        replicas: dict[str, list[Replica]] = {}
        for worker in self.view.workers:
            if worker.state == _READY:
                classes = frozenset(parse_length_classes(worker.length_classes))
                ceilings = parse_ceilings(worker.ceilings)
                rules = SlotRules(worker.max_num_seqs, worker.reserved_slots, ceilings)
                replica = Replica(worker.name, classes, rules, held.get(worker.name, {}))
                replicas.setdefault(worker.model, []).append(replica)
        models = {*self.view.models, *replicas, *(group.lane.model for group in self.view.groups)}
        fleets = {
            model: Fleet(replicas.get(model, ()), finished_per_s=self._paces.get(model, _NONE).finished_per_s)
            for model in models
        }
        for one in self.view.in_flight:
            fleet = fleets.get(one.lane.model)
            if one.worker is None and fleet is not None:
                for _ in range(one.tasks if fleet.serves(one.lane.length_class) else 0):
                    fleet.take(self._kind(one.lane), force=True)
        return fleets

    def _count_places(self) -> Places:
        """What tenants with a bound on what they run have left of it: what is on its way has a place already."""
        left = dict(self.view.running_bounds)
        for one in self.view.in_flight:
            if one.tenant_id in left:
                left[one.tenant_id] -= one.tasks
        return Places(left)

    def held_tenants(self) -> list[str]:
        """Return the tenants of which nothing may be published but by the dispatcher.

        Without a place left they would be refused at the claim, and with work waiting it would be overtaken.
        """
        waiting = {group.tenant_id for group in self.view.groups}
        bounded = self.view.running_bounds
        return sorted(one for one in bounded if one in waiting or self.places.none_for(one))

    def slots(self, model: str) -> int:
        """Count the slots of a model's ready replicas."""
        fleet = self.fleets.get(model)
        return sum(replica.rules.total for replica in fleet.replicas) if fleet else 0

    def backed_up(self, model: str) -> bool:
        """Say whether more waits than can run."""
        return self._was_full.get(model, False) and any(
            group.lane.model == model for group in self.view.groups
        )

    def _kind(self, lane: Lane) -> Kind:
        # first come, first served: nobody takes another's place
        return Kind(FIFO if self._fifo else lane.priority, lane.length_class)

    def rest_s(self) -> float | None:
        """Return how long the next look may wait; None while nothing waits that a replica takes.

        Without any such thing, nothing changes by itself soon.
        """
        if not self._going_on:
            return None
        only_batch = all(kind.priority is Priority.BATCH for _, kind in self._going_on)
        return CALM_S if only_batch and not self._ran_short else BUSY_S

    def groups_with_room(self) -> list[Group]:
        """Return the groups of which something could be sent."""
        return [
            group
            for group in self.view.groups
            if not self.places.none_for(group.tenant_id)
            and self.fleets[group.lane.model].room(self._kind(group.lane)) > 0
        ]

    async def read(
        self, database: AsyncEngine, streaks: Mapping[Group, Streak], *, older_s: float
    ) -> dict[str, list[Head]]:
        """Read the heads of the groups with room, by model, each group in the order it wants to go in."""
        groups = self.groups_with_room()
        room = max(self.fleets[group.lane.model].room(self._kind(group.lane)) for group in groups)
        if self._fifo:
            limit = min(_MOST_HEADS, sum(fleet.most_room(FIFO) for fleet in self.fleets.values()))
            full = sorted(self._full_before)
            waiting = await read_oldest(database, groups, older_s=older_s, limit=limit, without=full)
            return self._by_model([self._head(one) for one in waiting], waiting)
        # enough for each group to fill its part of the room twice; the next look reads on
        most = min(_MOST_HEADS, max(_LEAST_HEADS, 2 * room // len(groups) + 1))
        waiting = await read_heads(database, groups, most, older_s=older_s)
        prefixes = {group: streaks[group].prefix for group in groups if group in streaks}
        mates = await read_mates(database, prefixes, most, older_s=older_s)
        fronts, of_prefix = self._by_group(waiting), self._by_group(mates)
        heads = list[Head]()
        for group, front in fronts.items():
            if group.lane.priority is Priority.BATCH:
                front = by_prefix(front, of_prefix.get(group, ()), streaks.get(group))
            heads += front
        return self._by_model(heads, waiting + mates)

    def _by_group(self, waiting: list[Waiting]) -> dict[Group, list[Head]]:
        found: dict[Group, list[Head]] = {}
        for one in waiting:
            found.setdefault(one.group, []).append(self._head(one))
        return found

    def _by_model(self, heads: list[Head], waiting: list[Waiting]) -> dict[str, list[Head]]:
        self._read = {one.id: one for one in waiting}
        found: dict[str, list[Head]] = {}
        for head in heads:
            found.setdefault(self._read[head.id].group.lane.model, []).append(head)
        return found

    def outgoing(self, head: Head) -> Outgoing:
        """What the broker is told of a head that was read."""
        one = self._read[head.id]
        return Outgoing(one.id, one.group.lane, one.traceparent, one.group.tenant_id, one.turned_back)

    def _head(self, one: Waiting) -> Head:
        lane = one.group.lane
        return Head(
            id=one.id,
            tenant_id=one.group.tenant_id,
            priority=lane.priority,
            length_class=lane.length_class,
            tokens=one.tokens,
            rank=one.rank,
            age_s=one.age_s,
            remaining_s=one.remaining_s,
            needs_s=self._paces.get(lane.model, _NONE).needs_s(one.max_output_tokens),
            prefix=one.prefix_key,
        )

    def active(self, model: str) -> set[str]:
        """Return the tenants with work waiting or in flight."""
        waiting = {group.tenant_id for group in self.view.groups if group.lane.model == model}
        return waiting | {one.tenant_id for one in self.view.in_flight if one.lane.model == model}

    def lift(self, model: str, served: Mapping[str, float], newcomers: set[str], floor: float) -> Lift:
        """Raise the counters of tenants that were not active before."""
        return lift(served, self.active(model), newcomers, floor)

    def with_in_flight(self, model: str, served: Mapping[str, float]) -> dict[str, float]:
        """Add to the counters what is being spent: as admitted, until the true figure is known."""
        counters = dict(served)
        for one in self.view.in_flight:
            if one.lane.model == model:
                weight = self.view.weights.get(one.tenant_id, 1.0)
                counters[one.tenant_id] = counters.get(one.tenant_id, 0.0) + charge(one.tokens, weight)
        return counters

    def ceilings(self, held: int) -> dict[str, dict[Priority, int]]:
        """Say how much may be published without the dispatcher, by model and priority.

        Nothing where something of the same or a higher priority waits: it would be overtaken. What waits for its
        own tenant's places alone holds nobody up. `held`: messages that workers hold, counted before the look.
        """
        backlog = {
            (group.lane.model, group.lane.priority)
            for group in self.view.groups
            if group.tenant_id not in self._full_before
        }
        ceilings: dict[str, dict[Priority, int]] = {}
        for model, fleet in self.fleets.items():
            blocked = False
            of_model: dict[Priority, int] = {}
            anything = any(of == model for of, _ in backlog)
            for priority in Priority:
                blocked = blocked or (model, priority) in backlog or (self._fifo and anything)
                room = fleet.most_room(FIFO if self._fifo else priority)
                of_model[priority] = 0 if blocked else held + self._published(model, priority) + room
            ceilings[model] = of_model
        return ceilings

    def _published(self, model: str, priority: Priority) -> int:
        """Messages in the queues were taken off the room already, and are counted again by who asks."""
        return sum(
            one.tasks
            for one in self.view.in_flight
            if one.worker is None and one.lane.model == model and one.lane.priority is priority
        )
