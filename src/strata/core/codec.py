"""Records and state as bytes: one canonical form, so that equal states are equal bytes on every machine."""

from collections.abc import Sequence
from functools import reduce
from hashlib import blake2b
from operator import or_
from typing import Any

import msgspec

from strata.core.ranges import RangeSet
from strata.core.records import Record, every_record
from strata.core.state import State


def _plain(value: Any) -> Any:
    if isinstance(value, RangeSet):
        return value.to_flat()
    raise TypeError(f"{type(value).__name__} has no place in durable state")


def _rich(kind: type, value: Any) -> Any:
    if kind is RangeSet:
        return RangeSet.from_flat(value)
    raise TypeError(f"{kind.__name__} has no place in durable state")


_encoder = msgspec.msgpack.Encoder()
_any_record: Any = reduce(or_, every_record())
_record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(_any_record)
_records_decoder: msgspec.msgpack.Decoder[list[Record]] = msgspec.msgpack.Decoder(list[_any_record])


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes) -> Record:
    return _record_decoder.decode(data)


def encode_records(records: Sequence[Record]) -> bytes:
    return _encoder.encode(records)


def decode_records(data: bytes) -> list[Record]:
    return _records_decoder.decode(data)


def encode_state(state: State) -> bytes:
    """The canonical form: every dict in the order of its keys, whatever order they came in."""
    return _encoder.encode(msgspec.to_builtins(state, str_keys=True, enc_hook=_plain, order="deterministic"))


def decode_state(data: bytes) -> State:
    return msgspec.convert(msgspec.msgpack.decode(data), State, str_keys=True, dec_hook=_rich)


def digest(state: State) -> str:
    """A short name for this very state."""
    return blake2b(encode_state(state), digest_size=16).hexdigest()
