"""The step over a world in virtual time: launches, crashes, leases, money."""

from __future__ import annotations

import pytest

from verlops.cost import bill
from verlops.errors import CapacityError, LeaseHeldError, LeaseLostError, ThrottledError
from verlops.model import Launch
from verlops.sim.provider import LostAnswerError


def boot(world, controller) -> None:
    """Steps until two rollout workers and the reward server serve."""
    controller.step()
    world.clock.sleep(61)
    world.beat_all()
    controller.step()


def test_first_step_launches_minimum_and_reward_server(world) -> None:
    step = world.controller().step()
    assert {a.role for a in step.actions if isinstance(a, Launch)} == {"rollout", "reward"}
    assert len(world.alive("rollout")) == 2
    assert len(world.alive("reward")) == 1
    assert {i.offer.id for i in world.alive("rollout")} <= {"l20-a", "l20-b"}


def test_lost_answer_of_a_launch_makes_no_twin(world) -> None:
    world.provider.faults.append(LostAnswerError("timeout"))
    controller = world.controller()
    controller.step()
    for _ in range(3):
        world.clock.sleep(30)
        controller.step()
    assert world.provider.launches == 3
    _, intents = world.state.load()
    assert intents == []


def test_throttled_launch_is_repeated_with_the_same_key(world) -> None:
    world.provider.faults.append(ThrottledError("slow down"))
    controller = world.controller()
    first = controller.step()
    wanted = {a.key for a in first.actions if isinstance(a, Launch)}
    world.clock.sleep(30)
    controller.step()
    assert {i.key for i in world.provider.instances()} == wanted


def test_capacity_refusal_goes_to_another_offer(world) -> None:
    world.provider.faults.append(CapacityError("none left"))
    controller = world.controller()
    controller.step()
    for _ in range(2):
        world.clock.sleep(30)
        controller.step()
    assert len(world.alive("rollout")) == 2
    assert len({i.key for i in world.provider.instances()}) == len(world.provider.instances())


def test_backlog_grows_the_pool_in_steps(world) -> None:
    controller = world.controller()
    boot(world, controller)
    world.prompts(1900)
    counts = []
    for _ in range(6):
        world.clock.sleep(30)
        world.beat_all(in_flight=1)
        controller.step()
        counts.append(len(world.alive("rollout")))
    assert counts[-1] == 10
    assert all(b - a <= max(2, a // 2 + 1) for a, b in zip([2, *counts], counts, strict=False))


def test_trainer_starts_once_and_its_samples_are_spent(world) -> None:
    controller = world.controller()
    boot(world, controller)
    world.prompts(20)
    worker = world.alive("rollout")[0]
    ids = world.work(worker, 0, 12)
    world.clock.sleep(30)
    world.beat_all()
    step = controller.step()
    assert step.observation.samples.usable == 96
    assert len(world.alive("trainer")) == 1
    world.clock.sleep(30)
    world.beat_all()
    controller.step()
    assert len(world.alive("trainer")) == 1
    trainer = world.alive("trainer")[0]
    assert world.provider.specs[trainer.id].parent == 0
    world.commit(1, ids[:10], trainer.id)
    world.provider.finish(trainer.id)
    world.clock.sleep(30)
    world.beat_all()
    step = controller.step()
    assert step.observation.version == 1
    assert step.observation.samples.trained == 80
    assert step.observation.samples.usable == 16
    assert step.observation.prompts.total() == 20
    assert world.alive("trainer") == []


def test_three_failed_trainers_stop_launching(world) -> None:
    controller = world.controller()
    boot(world, controller)
    world.prompts(20)
    world.work(world.alive("rollout")[0], 0, 12)
    launched = 0
    for _ in range(12):
        world.clock.sleep(30)
        world.beat_all()
        step = controller.step()
        for trainer in world.alive("trainer"):
            launched += 1
            world.provider.finish(trainer.id, "failed", 1)
    assert launched == 3
    assert any("trainer" in alarm for alarm in step.alarms)


def test_noticed_worker_is_replaced_once(world) -> None:
    controller = world.controller()
    boot(world, controller)
    victim = world.alive("rollout")[0]
    world.provider.notice(victim.id)
    for _ in range(6):
        world.clock.sleep(30)
        world.beat_all(in_flight=1)
        controller.step()
    assert len(world.alive("rollout")) == 2
    assert world.provider.launches == 4
    kinds = [e.kind for e in world.state.events() if e.instance_id == victim.id]
    assert kinds.count("notice") == 1
    assert kinds.count("ended") == 1


def test_a_second_controller_is_refused_and_leaves_the_lease_alone(world) -> None:
    world.controller("first").step()
    before = world.state.lease("controller")
    with pytest.raises(LeaseHeldError):
        world.controller("second").step()
    assert world.state.lease("controller") == before


def test_an_overtaken_controller_stops(world) -> None:
    first = world.controller("first")
    first.step()
    world.clock.sleep(200)
    world.controller("second").step()
    launches = world.provider.launches
    with pytest.raises((LeaseHeldError, LeaseLostError)):
        first.step()
    assert world.provider.launches == launches


def test_a_restarted_controller_continues(world) -> None:
    controller = world.controller()
    boot(world, controller)
    world.prompts(1900)
    for _ in range(6):
        world.clock.sleep(30)
        world.beat_all(in_flight=1)
        controller.step()
    again = world.controller("again")
    world.clock.sleep(200)
    world.beat_all(in_flight=1)
    again.step()
    assert len(world.alive("rollout")) == 10
    assert world.provider.launches == 11


def test_down_leaves_nothing_and_keeps_draining_workers_samples(world) -> None:
    controller = world.controller()
    boot(world, controller)
    controller.go_down()
    for number in range(20):
        world.clock.sleep(30)
        world.beat_all(phase="drained" if number else "draining")
        controller.step()
    assert all(i.phase == "gone" for i in world.provider.instances())


def test_failed_listing_neither_launches_nor_ends(world) -> None:
    controller = world.controller()
    boot(world, controller)
    launches = world.provider.launches
    world.prompts(1900)
    world.provider.listing_fault = ThrottledError("slow down")
    for _ in range(3):
        world.clock.sleep(30)
        step = controller.step()
        assert "instances" in step.observation.missing
        assert not any(isinstance(a, Launch) for a in step.actions)
    world.provider.listing_fault = None
    assert world.provider.launches == launches


def test_ledger_equals_the_providers_own_bill(world) -> None:
    controller = world.controller()
    boot(world, controller)
    world.provider.notice(world.alive("rollout")[0].id)
    for _ in range(10):
        world.clock.sleep(30)
        world.beat_all(in_flight=1)
        controller.step()
    controller.step()
    now = world.clock.now()
    ours = {}
    for line in bill(controller.observer.ledger.refresh(), now):
        ours[line.instance_id] = ours.get(line.instance_id, 0) + line.amount
    theirs = world.provider.billed(now)
    assert set(ours) == set(theirs)
    assert all(abs(ours[i] - theirs[i]) <= 1 for i in ours)
