"""From what an engine returned to a group and its receipt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from verlops.errors import CorruptError
from verlops.messages import (
    FinishReason,
    Group,
    Prompt,
    Receipt,
    Sample,
    Segment,
    check_sample,
    clean_logprobs,
    group_id,
    pack_ids,
    pack_logprobs,
)
from verlops.ports import Position, RawSample


class Job(NamedTuple):
    """A prompt that this worker holds."""

    partition: int
    offset: int
    prompt: Prompt
    token_ids: list[int]
    attempt: str

    @property
    def group(self) -> str:
        """The id of its group."""
        return group_id(self.prompt.run, self.prompt.id, self.prompt.epoch)


class Made(NamedTuple):
    """A finished job: its group, or why it was rejected."""

    job: Job
    group: Group | None
    rejected: str
    gpu_seconds: float


class Maker(NamedTuple):
    """Who makes groups here."""

    worker: str
    instance: str
    engine: str


def make(
    job: Job,
    raw: Sequence[RawSample],
    texts: Sequence[str],
    maker: Maker,
    *,
    gpu_seconds: float,
    now: float,
) -> Made:
    """The group of a job, unscored; or a rejection with its reason."""
    try:
        if len(raw) != job.prompt.group_size:
            raise CorruptError(f"{len(raw)} samples for a group of {job.prompt.group_size}")
        samples = [_sample(i, r, t) for i, (r, t) in enumerate(zip(raw, texts, strict=True))]
    except CorruptError as error:
        return Made(job, None, str(error), gpu_seconds)
    group = Group(
        id=job.group,
        attempt=job.attempt,
        run=job.prompt.run,
        prompt_id=job.prompt.id,
        epoch=job.prompt.epoch,
        prompt_token_ids=pack_ids(job.token_ids),
        samples=samples,
        task=job.prompt.task,
        reference=job.prompt.reference,
        sampling=job.prompt.sampling,
        worker=maker.worker,
        instance=maker.instance,
        engine=maker.engine,
        gpu_seconds=gpu_seconds,
        created_at=now,
    )
    return Made(job, group, "", gpu_seconds)


def receipt(made: Made, place: Position | None, maker: Maker, now: float) -> Receipt:
    """The receipt of a group that is durable at ``place``, or of a rejection."""
    job, group = made.job, made.group
    scored = [s for s in group.samples if s.reward_state == "scored"] if group else []
    rewards = [s.reward for s in scored if s.reward is not None]
    return Receipt(
        group_id=job.group,
        attempt=job.attempt,
        prompt_id=job.prompt.id,
        prompt_partition=job.partition,
        prompt_offset=job.offset,
        partition=place.partition if place else -1,
        offset=place.offset if place else -1,
        oldest_version=group.oldest_version() if group else -1,
        newest_version=group.newest_version() if group else -1,
        samples=job.prompt.group_size,
        scored=len(rewards),
        failed=sum(s.reward_state == "failed" for s in group.samples) if group else 0,
        rejected=made.rejected,
        prompt_tokens=len(job.token_ids),
        response_tokens=sum(len(s.token_ids) // 4 for s in group.samples) if group else 0,
        reward_sum=sum(rewards),
        uniform=len(rewards) > 1 and len(set(rewards)) == 1,
        gpu_seconds=made.gpu_seconds,
        worker=maker.worker,
        instance=maker.instance,
        at=now,
    )


def _sample(index: int, raw: RawSample, text: str) -> Sample:
    if len(raw.token_ids) != len(raw.logprobs):
        raise CorruptError("token ids and log-probabilities differ in length")
    sample = Sample(
        index=index,
        token_ids=pack_ids(raw.token_ids),
        logprobs=pack_logprobs(clean_logprobs(raw.logprobs)),
        segments=[Segment(length=len(raw.token_ids), version=raw.version, weights=raw.weights)],
        finish_reason=_reason(raw.finish_reason),
        text=text,
    )
    check_sample(sample)
    return sample


def _reason(text: str) -> FinishReason:
    if text not in ("stop", "length", "abort"):
        raise CorruptError(f"unknown finish reason '{text}'")
    return text  # type: ignore[return-value]
