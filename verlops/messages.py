"""The records on the topics, and how they become bytes.

Written and read by workers, trainer, feeder and controller. msgpack maps through
msgspec, tagged by ``type``; fields are only ever added, with a default; unknown fields
are ignored; length is checked before decoding. Token ids are packed little-endian
int32, log-probabilities little-endian float32.
"""

from __future__ import annotations

import array
import hashlib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from verlops.errors import CorruptError

MAX_RECORD = 64 * 1024 * 1024
"""Bytes: nothing longer is ever decoded."""

LOGPROB_SLACK = 1e-4
"""A log-probability in (0, this] is rounding and set to 0; above it is an error."""

RewardState = Literal["scored", "unscored", "failed"]
FinishReason = Literal["stop", "length", "abort"]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of the records."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sample. ``top_k`` −1 and ``top_p`` 1 mean: from the policy itself."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_ids: list[int] = []


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``length`` consecutive response tokens sampled by one version of the policy."""

    length: int
    version: int
    weights: str
    """sha256 of the weights file that was served, in hex."""


class Prompt(Record, frozen=True, kw_only=True, tag="prompt"):
    """A prompt to be sampled ``group_size`` times. Exactly one of ids, text, messages."""

    id: str
    run: str
    epoch: int = 0
    token_ids: bytes | None = None
    text: str | None = None
    messages: list[dict[str, str]] | None = None
    group_size: int
    sampling: Sampling
    task: str = ""
    reference: str = ""


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One response. Arrays have one entry a response token, EOS included."""

    index: int
    token_ids: bytes
    logprobs: bytes
    segments: list[Segment]
    finish_reason: FinishReason
    reward: float | None = None
    reward_state: RewardState = "unscored"
    text: str = ""


class Group(Record, frozen=True, kw_only=True, tag="group"):
    """One complete attempt at one prompt; published as one record."""

    id: str
    attempt: str
    run: str
    prompt_id: str
    epoch: int = 0
    prompt_token_ids: bytes
    samples: list[Sample]
    task: str = ""
    reference: str = ""
    sampling: Sampling
    scorer: str = ""
    """Scorer name and version."""
    worker: str
    instance: str
    engine: str = ""
    gpu_seconds: float = 0.0
    created_at: float = 0.0

    def oldest_version(self) -> int:
        """The version of the oldest segment of any sample."""
        return min(s.version for sample in self.samples for s in sample.segments)

    def newest_version(self) -> int:
        """The version of the newest segment of any sample."""
        return max(s.version for sample in self.samples for s in sample.segments)


class Receipt(Record, frozen=True, kw_only=True, tag="receipt"):
    """What the controller reads instead of a group; written after the group is durable.

    A receipt with ``rejected`` set has no group (partition and offset −1).
    """

    group_id: str
    attempt: str
    prompt_id: str
    prompt_partition: int
    prompt_offset: int
    partition: int
    offset: int
    oldest_version: int
    newest_version: int
    samples: int
    scored: int
    failed: int = 0
    rejected: str = ""
    """Why the attempt was refused; empty when it is fine."""
    prompt_tokens: int = 0
    response_tokens: int = 0
    reward_sum: float = 0.0
    uniform: bool = False
    """All scores of the group are equal: no group-relative signal."""
    gpu_seconds: float = 0.0
    worker: str
    instance: str
    at: float = 0.0


class Beat(Record, frozen=True, kw_only=True, tag="beat"):
    """A sign of life, every few seconds, from any machine of ours.

    ``phase``: booting, serving, paused, draining, drained, collecting, training,
    saving, warm, done.
    """

    worker: str
    instance: str
    role: str
    phase: str
    at: float
    in_flight: int = 0
    """Prompts (groups) taken and not yet finished."""
    in_flight_samples: int = 0
    held: list[str] = []
    """Ids of the groups in flight."""
    tokens_per_s: float | None = None
    kv_use: float | None = None
    version: int | None = None
    weights: str = ""
    url: str = ""
    """Where a reward server listens."""
    progress: str = ""
    control_fence: int = 0
    """The highest fence this machine has obeyed."""
    done_groups: int = 0
    gpu_memory: int | None = None
    """Bytes in use on the fullest GPU."""


class Control(Record, frozen=True, kw_only=True, tag="control"):
    """From the controller to a worker id, a role, or ``*``; the newest a key holds.

    A worker ignores a record whose fence is lower than one it has seen.
    """

    target: str
    command: Literal["serve", "pause", "drain", "stop"] = "serve"
    fence: int
    at: float
    quota: int | None = None
    """Samples that each worker may newly take until the next record; None: no bound."""
    version: int | None = None
    """The newest committed version: workers pull it."""
    version_floor: int | None = None
    reward_url: str = ""
    keep_until: float | None = None
    reason: str = ""


class Partial(Record, frozen=True, kw_only=True, tag="partial"):
    """An unfinished group, handed over on a spot notice."""

    group_id: str
    attempt: str
    prompt: Prompt
    prompt_partition: int = -1
    prompt_offset: int = -1
    finished: list[Sample] = []
    unfinished: list[Sample] = []
    hops: int = 0
    worker: str
    instance: str
    gpu_seconds: float = 0.0


class Dead(Record, frozen=True, kw_only=True, tag="dead"):
    """A record that can't be used. Never its payload."""

    id: str
    topic: str
    partition: int
    offset: int
    reason: str
    at: float = 0.0


AnyRecord = Prompt | Group | Receipt | Beat | Control | Partial | Dead

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    """The bytes of a record."""
    return _encoder.encode(record)


def decode(data: bytes) -> AnyRecord:
    """The record in ``data``. Raises CorruptError when it is none, or too long."""
    if len(data) > MAX_RECORD:
        raise CorruptError(f"record of {len(data)} bytes is over {MAX_RECORD}")
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"not a verlops record: {error}") from error


def group_id(run: str, prompt_id: str, epoch: int) -> str:
    """The id of every attempt at this prompt in this epoch: 16 bytes in hex."""
    return _hash16(run, prompt_id, str(epoch))


def prompt_id(*parts: str) -> str:
    """A prompt's id from its content: 16 bytes in hex."""
    return _hash16(*parts)


def sample_id(group: str, index: int) -> str:
    """The id of one sample of a group."""
    return f"{group}/{index}"


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32."""
    return _little(array.array("i", ids))


def unpack_ids(data: bytes) -> list[int]:
    """The inverse of pack_ids. Raises CorruptError on a broken length."""
    return _unpack("i", data).tolist()


def pack_logprobs(values: Iterable[float]) -> bytes:
    """Log-probabilities as little-endian float32."""
    return _little(array.array("f", values))


def unpack_logprobs(data: bytes) -> list[float]:
    """The inverse of pack_logprobs. Raises CorruptError on a broken length."""
    return _unpack("f", data).tolist()


def clean_logprobs(values: Sequence[float]) -> list[float]:
    """Values with rounding above 0 set to 0. Raises CorruptError on NaN or worse."""
    for value in values:
        if not math.isfinite(value):
            raise CorruptError("a log-probability is not finite")
        if value > LOGPROB_SLACK:
            raise CorruptError(f"log-probability {value:.6g} is above 0")
    return [min(value, 0.0) for value in values]


def check_sample(sample: Sample) -> None:
    """Raise CorruptError unless ids, logprobs and segments agree in length."""
    tokens = len(sample.token_ids) // 4
    if len(sample.token_ids) % 4 or len(sample.logprobs) != len(sample.token_ids):
        raise CorruptError("token ids and log-probabilities differ in length")
    if sum(segment.length for segment in sample.segments) != tokens or not tokens:
        raise CorruptError("segments do not cover the response")


class TopicNames:
    """The topics of one environment: ``<name>.prompts`` and so on."""

    def __init__(self, name: str) -> None:
        self.prompts = f"{name}.prompts"
        self.samples = f"{name}.samples"
        self.receipts = f"{name}.receipts"
        self.beats = f"{name}.beats"
        self.control = f"{name}.control"
        self.resume = f"{name}.resume"
        self.dead = f"{name}.dead"
        self.rollout_group = f"{name}.rollout"
        """The consumer group of the rollout workers."""

    def all(self) -> tuple[str, ...]:
        """Every topic's name."""
        return (
            self.prompts,
            self.samples,
            self.receipts,
            self.beats,
            self.control,
            self.resume,
            self.dead,
        )


def _hash16(*parts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _little(values: array.array[int] | array.array[float]) -> bytes:
    if sys.byteorder == "big":  # pragma: no cover - no such machine here
        values.byteswap()
    return values.tobytes()


def _unpack(kind: Literal["i", "f"], data: bytes) -> array.array:  # type: ignore[type-arg]
    if len(data) % 4:
        raise CorruptError(f"packed array of {len(data)} bytes is not a multiple of 4")
    values = array.array(kind)
    values.frombytes(data)
    if sys.byteorder == "big":  # pragma: no cover - no such machine here
        values.byteswap()
    return values
