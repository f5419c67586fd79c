"""Programs that the local store's tests start, and kill.

race FOLDER NAME ROUNDS     put_if_absent of NAME under race/0 …; prints the rounds it won
churn FOLDER NAME ROUNDS    put, then delete, under one folder that others empty, too
big FOLDER KEY              put 50 MB over and over; a line before and after each
limited FOLDER KEY          put 1 MB where no file may grow beyond 100 kB; prints the error
"""

import resource
import sys
from pathlib import Path

from verlops.artifacts.local import LocalStore
from verlops.errors import ConflictError, VerlopsError


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def race(folder: str, name: str, rounds: str) -> None:
    store = LocalStore(Path(folder))
    say("ready")
    sys.stdin.readline()
    for number in range(int(rounds)):
        try:
            store.put_if_absent(f"race/{number}", name.encode())
        except ConflictError:
            continue
        say(number)


def churn(folder: str, name: str, rounds: str) -> None:
    store = LocalStore(Path(folder))
    say("ready")
    sys.stdin.readline()
    for number in range(int(rounds)):
        key = f"deep/er/{name}"
        store.put(key, b"%d" % number)
        assert store.get(key) == b"%d" % number
        store.delete(key)
    say("done")


def big(folder: str, key: str) -> None:
    store = LocalStore(Path(folder))
    for number in range(256):
        say("begin", number)
        store.put(key, bytes([number]) * 50_000_000)
        say("end", number)


def limited(folder: str, key: str) -> None:
    store = LocalStore(Path(folder))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    for put in (store.put, store.put_if_absent):
        try:
            put(key, b"x" * 1_000_000)
        except VerlopsError as error:
            say(type(error).__name__, error)


if __name__ == "__main__":
    {"race": race, "churn": churn, "big": big, "limited": limited}[sys.argv[1]](*sys.argv[2:])
