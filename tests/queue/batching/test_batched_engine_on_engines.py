"""The desk before real engines: what it promises holds where the database has its own ideas of time."""

import asyncio
import time

import pytest

from pump.queue.batching.batched_engine import Desk
from pump.queue.vocabulary import Push, Settlement, Status, Want
from support.queue_rig import TimedEngine
from support.waiting import eventually_async

WANT = Want(queue="orders", ordered=False)


@pytest.mark.requirement("Q-59")
def test_a_push_wakes_a_parked_pop_within_a_tenth_of_a_second(engine: TimedEngine) -> None:
    async def once(desk: Desk) -> float:
        waiting = asyncio.create_task(desk.pop(WANT, 20.0))
        await eventually_async(lambda: "orders" in desk._halls and desk._halls["orders"].end is not None)
        await eventually_async(lambda: any(not line.is_empty for line in desk._halls["orders"].lines.values()))
        pushed = time.monotonic()
        await desk.push([Push("orders", b"1")])
        taken = await waiting
        took = time.monotonic() - pushed
        await desk.settle(
            [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken.messages]
        )
        return took

    async def main() -> None:
        desk = Desk(engine)

        assert min([await once(desk) for _ in range(5)]) < 0.1
        await desk.close()

    asyncio.run(main())


def test_a_message_that_becomes_due_is_there_on_time(engine: TimedEngine) -> None:
    async def main() -> None:
        desk = Desk(engine)
        begun = time.monotonic()
        await desk.push([Push("orders", b"1", delay=0.3)])

        taken = await desk.pop(WANT, 20.0)

        assert len(taken.messages) == 1
        assert 0.25 < time.monotonic() - begun < 0.9  # and not only at the look that comes once a second
        await desk.close()

    asyncio.run(main())


@pytest.mark.requirement("Q-32")
def test_many_who_wait_get_each_message_once(engine: TimedEngine) -> None:
    async def main() -> None:
        desk = Desk(engine)
        got: list[bytes] = []

        async def consume() -> None:
            while len(got) < 200:
                taken = await desk.pop(WANT, 0.5)
                got.extend(message.payload for message in taken.messages)
                await desk.settle([Settlement(m.transaction_id, m.partition_id, m.lease_id) for m in taken.messages])

        consumers = [asyncio.create_task(consume()) for _ in range(20)]
        await asyncio.gather(*(desk.push([Push("orders", b"%d" % number)]) for number in range(200)))
        await asyncio.gather(*consumers)

        assert sorted(map(int, got)) == list(range(200))
        await desk.close()

    asyncio.run(main())


def test_pops_that_are_cancelled_at_any_moment_lose_nothing_and_count_nothing(engine: TimedEngine) -> None:
    async def main() -> None:
        desk = Desk(engine)
        await desk.push([Push("orders", b"%d" % number, transaction_id=str(number)) for number in range(20)])
        for number in range(60):
            popping = asyncio.create_task(desk.pop(WANT, 5.0))
            await asyncio.sleep(0.0002 * number)
            popping.cancel()
            for taken in await asyncio.gather(popping, return_exceptions=True):
                if not isinstance(taken, BaseException):
                    await desk.release(WANT, taken)
        await desk.close()  # it ends what is under way, the giving back too

        taken = engine.pop(Want(queue="orders", limit=100))
        assert sorted(int(message.payload) for message in taken.messages) == list(range(20))
        assert {(message.retries, message.crashes) for message in taken.messages} == {(0, 0)}

    asyncio.run(main())


def test_wrong_settlements_among_good_ones_fail_alone(engine: TimedEngine) -> None:
    async def main() -> None:
        desk = Desk(engine)
        await desk.push([Push("orders", b"1") for _ in range(20)])
        taken = await desk.pop(Want(queue="orders", limit=20, ordered=False))
        good = [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken.messages]
        bad = [
            Settlement("x", "no uuid", "no lease", Status.FAILED, delay=-1.0 if number % 2 else None)
            for number in range(6)
        ]

        results = await asyncio.gather(*(desk.settle([each]) for each in [*good, *bad]), return_exceptions=True)

        assert all(not isinstance(result, BaseException) and result[0].success for result in results[:20])
        assert all(isinstance(result, BaseException) or not result[0].success for result in results[20:])
        await desk.close()

    asyncio.run(main())
