"""Programs that the process tests start, and kill. Each prints a line for what is done.

publish FOLDER TOPIC NAME      batches for ever; ``key partition offset`` of what is acknowledged
consume FOLDER TOPIC NAME S    a group member with session timeout S; ``got`` and ``committed``
ensure FOLDER COUNT            COUNT topics, over and over
full FOLDER TOPIC              publish until no file may grow; then how many were acknowledged
"""

import hashlib
import random
import resource
import sys
from pathlib import Path

from verlops.errors import FencedError, VerlopsError
from verlops.ports import TopicSpec
from verlops.queues.sqlite import SqliteQueue


def value_of(key: str) -> bytes:
    """A value of 100 to 20,000 bytes that follows from the key."""
    size = 100 + random.Random(key).randrange(20) ** 2 * 50
    block = hashlib.sha256(key.encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def publish(folder: str, topic: str, name: str) -> None:
    queue, number, chance = SqliteQueue(Path(folder)), 0, random.Random(name)
    while True:
        keys = [f"{name}-{number + n}" for n in range(chance.randint(1, 8))]
        number += len(keys)
        places = queue.publish(topic, [(key, value_of(key)) for key in keys])
        for key, place in zip(keys, places, strict=True):
            say(key, *place)


def consume(folder: str, topic: str, name: str, session: str) -> None:
    queue = SqliteQueue(Path(folder))
    member = queue.join(topic, "workers", member=name, session_timeout=float(session))
    while True:
        ends: dict[int, int] = {}
        for record in member.poll(5, 0.05):
            say("got", record.partition, record.offset)
            ends[record.partition] = record.offset + 1
        try:
            member.commit(ends)
        except FencedError:
            continue
        for partition, offset in ends.items():
            say("committed", partition, offset)


def ensure(folder: str, count: str) -> None:
    queue = SqliteQueue(Path(folder))
    while True:
        for number in range(int(count)):
            queue.ensure([TopicSpec(f"t{number}", 3, compact=number % 2 == 0)])
            queue.publish(f"t{number}", [("key", b"value")])
            say(number)


def full(folder: str, topic: str) -> None:
    queue, acknowledged = SqliteQueue(Path(folder)), 0
    queue.publish(topic, [("first", b"x")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    try:
        while True:
            queue.publish(topic, [(str(acknowledged), b"x" * 5000)])
            acknowledged += 1
    except VerlopsError as error:
        say(acknowledged, type(error).__name__, error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say(queue.publish(topic, [("last", b"x")])[0].offset)
    queue.close()


if __name__ == "__main__":
    {"publish": publish, "consume": consume, "ensure": ensure, "full": full}[sys.argv[1]](
        *sys.argv[2:]
    )
