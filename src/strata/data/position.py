"""Where a loader stands, and everything that its order depends on: small, plain, and the same on all ranks."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Self

import msgspec

from strata.core.ids import check_bool, check_int
from strata.core.orders import MAX_STREAMS, ElasticOrder, ShardLayout, Tail
from strata.core.permutation import MAX_SIZE
from strata.errors import InvalidInput

FORMAT = "strata-data-1"
OPEN_SHARE = 4
"""By default no more than one in so many shards of an epoch is open at once."""

_FIXED = ("total_samples", "shard_size", "global_batch_size", "seed", "shuffle", "streams", "window_shards", "tail")


class Cut(NamedTuple):
    """How samples are cut into shards and ordered, as far as it was said."""

    shuffle: bool | None
    seed: int | None
    shard_size: int | None


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`batch` is the next one of the epoch."""

    fingerprint: str
    total_samples: int
    shard_size: int
    global_batch_size: int
    seed: int
    shuffle: bool
    streams: int
    window_shards: int
    tail: Tail
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    batch: Annotated[int, msgspec.Meta(ge=0)]
    format: str = FORMAT

    def at(self, epoch: int, batch: int) -> Self:
        return msgspec.structs.replace(self, epoch=epoch, batch=batch)

    @property
    def reading(self) -> str:
        """All that the batches of an epoch depend on, beyond what is registered of a dataset: for people, too."""
        order = f"global_batch_size={self.global_batch_size}, streams={self.streams}"
        return f"{order}, window_shards={self.window_shards}, tail={self.tail}, data={self.fingerprint[:32]}"

    def plain(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Position":
        try:
            found = msgspec.convert(dict(state), Position)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise InvalidInput(f"this is no state of a loader: {error}") from error
        if found.format != FORMAT:
            raise InvalidInput(f"the state of the loader has format {found.format!r}, and this one knows {FORMAT!r}")
        return found


def beginning(
    fingerprint: str,
    layout: ShardLayout,
    global_batch_size: int,
    *,
    seed: int,
    shuffle: bool,
    streams: int | None,
    window_shards: int,
    tail: Tail,
    epoch: int,
) -> Position:
    """Of an epoch, of which something is given out if there is anything. No `streams`: as many as `streams_for`
    says."""
    check_int(global_batch_size, "global_batch_size", least=1, most=MAX_SIZE)
    check_int(window_shards, "window_shards", least=1)
    check_bool(shuffle, "shuffle")
    found = Position(
        fingerprint=fingerprint,
        total_samples=layout.total_samples,
        shard_size=layout.shard_size,
        global_batch_size=global_batch_size,
        seed=seed,
        shuffle=shuffle,
        streams=streams_for(layout, global_batch_size, window_shards, shuffle) if streams is None else streams,
        window_shards=window_shards,
        tail=tail,
        epoch=check_int(epoch, "epoch"),
        batch=0,
    )
    if layout.total_samples and not order_at(found).batches:
        raise InvalidInput(
            f"{layout.total_samples} samples fill no batch of {global_batch_size}, and tail='drop' leaves out what "
            "fills none, so that all epochs would be over at once: take a smaller global_batch_size, or tail='short' "
            "or 'pad'"
        )
    return found


def dropped(reading: str, total_samples: int) -> int:
    """How many samples of each epoch are left out by who reads so: those that fill no batch, if such are dropped."""
    said = dict(each.partition("=")[::2] for each in reading.split(", "))
    size = said.get("global_batch_size", "")
    return total_samples % int(size) if said.get("tail") == "drop" and size.isdecimal() and int(size) else 0


def told_apart(then: str, now: str) -> str:
    """In what two readings differ, to be said of an epoch that was begun with the first; and what to do."""
    ours = now.split(", ")
    before = [each for each in then.split(", ") if each not in ours]
    after = [each for each in ours if each not in then.split(", ")]
    is_other = any(each.startswith("data=") for each in after)
    data = " The data is not the same: its files, what they hold, or its columns differ." if is_other else ""
    return (
        f"was begun with {', '.join(before) or 'nobody knows what'}, and this loader has {', '.join(after)}: an epoch "
        f"cannot go on in another order than it began.{data} Go on with the same; change it when the epoch is over"
    )


def resumed(own: Position, found: Position, change: Callable[[str], str]) -> Position:
    """Where a loader that was made like `own` goes on. InvalidInput if that would give other samples than were left. At
    the beginning of an epoch, and at its end, none are left over, and what comes may be read in another order.
    `change` tells in what the data is another than that of a fingerprint."""
    if found.fingerprint != own.fingerprint:
        raise InvalidInput(
            f"the data is not what it was when this state was saved: {change(found.fingerprint)} "
            f"(fingerprint {found.fingerprint[:16]} then, {own.fingerprint[:16]} now)"
        )
    if found.batch == 0:
        return own.at(found.epoch, 0)
    others = [name for name in _FIXED if getattr(own, name) != getattr(found, name)]
    if others and found.batch >= order_at(found).batches:
        return own.at(found.epoch + 1, 0)
    if others:
        told = ", ".join(f"{name} {getattr(found, name)!r} then, {getattr(own, name)!r} now" for name in others)
        raise InvalidInput(
            f"an epoch cannot go on in another order than it began: {told}. Make the loader as it was; the next epoch "
            "may be read as you like"
        )
    return found


def streams_for(layout: ShardLayout, global_batch_size: int, window_shards: int, shuffle: bool) -> int:
    """As many as divide the batch, while few of the epoch's shards are open: a batch takes from a window of each."""
    if not shuffle:
        return 1
    most = max(1, min(MAX_STREAMS, layout.shard_count // (OPEN_SHARE * max(1, window_shards))))
    return max(each for each in range(1, most + 1) if global_batch_size % each == 0)


def through(order: ElasticOrder, batch: int) -> int:
    """So many places of the epoch's order are consumed when so many batches are."""
    return min(batch * order.global_batch_size, order.order.layout.total_samples)


def batch_after(order: ElasticOrder, consumed: int) -> int:
    """The inverse of that, for what is consumed by an order like this one."""
    return min(-(-consumed // order.global_batch_size), order.batches)


def order_at(where: Position) -> ElasticOrder:
    """The order of the epoch that this is in."""
    return ElasticOrder(
        ShardLayout(where.total_samples, where.shard_size),
        where.seed,
        where.epoch,
        where.shuffle,
        where.global_batch_size,
        streams=where.streams,
        window_shards=where.window_shards,
        tail=where.tail,
    )
