"""The batched engine in front of real engines: its promises also hold with the database's own clock."""

import asyncio
import time

import pytest

from pump.queue.batching.batched_engine import BatchedEngine
from pump.queue.engine import Engine
from pump.queue.vocabulary import PopRequest, Push, Settlement, Status
from support.waiting import eventually_async

WANT = PopRequest(queue="orders", ordered=False)


@pytest.mark.requirement("Q-59")
def test_a_push_wakes_a_waiting_pop_within_a_tenth_of_a_second(engine: Engine) -> None:
    async def once(batched: BatchedEngine) -> float:
        waiting = asyncio.create_task(batched.pop(WANT, 20.0))
        await eventually_async(
            lambda: "orders" in batched._waiters and batched._waiters["orders"].end_listening is not None
        )
        await eventually_async(lambda: any(not line.is_empty for line in batched._waiters["orders"].lines.values()))
        pushed = time.monotonic()
        await batched.push([Push("orders", b"1")])
        taken = await waiting
        took = time.monotonic() - pushed
        await batched.settle(
            [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken.messages]
        )
        return took

    async def main() -> None:
        batched = BatchedEngine(engine)

        assert min([await once(batched) for _ in range(5)]) < 0.1
        await batched.close()

    asyncio.run(main())


def test_a_message_that_becomes_due_is_there_on_time(engine: Engine) -> None:
    async def main() -> None:
        batched = BatchedEngine(engine)
        begun = time.monotonic()
        await batched.push([Push("orders", b"1", delay=0.3)])

        taken = await batched.pop(WANT, 20.0)

        assert len(taken.messages) == 1
        assert 0.25 < time.monotonic() - begun < 0.9  # and not only at the look once a second
        await batched.close()

    asyncio.run(main())


@pytest.mark.requirement("Q-32")
def test_many_who_wait_get_each_message_once(engine: Engine) -> None:
    async def main() -> None:
        batched = BatchedEngine(engine)
        got: list[bytes] = []

        async def consume() -> None:
            while len(got) < 200:
                taken = await batched.pop(WANT, 0.5)
                got.extend(message.payload for message in taken.messages)
                await batched.settle([Settlement(m.transaction_id, m.partition_id, m.lease_id) for m in taken.messages])

        consumers = [asyncio.create_task(consume()) for _ in range(20)]
        await asyncio.gather(*(batched.push([Push("orders", b"%d" % number)]) for number in range(200)))
        await asyncio.gather(*consumers)

        assert sorted(map(int, got)) == list(range(200))
        await batched.close()

    asyncio.run(main())


def test_pops_that_are_cancelled_at_any_moment_lose_nothing_and_count_nothing(engine: Engine) -> None:
    async def main() -> None:
        batched = BatchedEngine(engine)
        await batched.push([Push("orders", b"%d" % number, transaction_id=str(number)) for number in range(20)])
        for number in range(60):
            popping = asyncio.create_task(batched.pop(WANT, 5.0))
            await asyncio.sleep(0.0002 * number)
            popping.cancel()
            for taken in await asyncio.gather(popping, return_exceptions=True):
                if not isinstance(taken, BaseException):
                    await batched.release(WANT, taken)
        await batched.close()  # it waits for running calls, also for giving back

        taken = engine.pop(PopRequest(queue="orders", limit=100))
        assert sorted(int(message.payload) for message in taken.messages) == list(range(20))
        assert {(message.retries, message.crashes) for message in taken.messages} == {(0, 0)}

    asyncio.run(main())


def test_wrong_settlements_among_good_ones_fail_alone(engine: Engine) -> None:
    async def main() -> None:
        batched = BatchedEngine(engine)
        await batched.push([Push("orders", b"1") for _ in range(20)])
        taken = await batched.pop(PopRequest(queue="orders", limit=20, ordered=False))
        good = [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken.messages]
        bad = [
            Settlement("x", "no uuid", "no lease", Status.FAILED, delay=-1.0 if number % 2 else None)
            for number in range(6)
        ]

        results = await asyncio.gather(*(batched.settle([each]) for each in [*good, *bad]), return_exceptions=True)

        assert all(not isinstance(result, BaseException) and result[0].success for result in results[:20])
        assert all(isinstance(result, BaseException) or not result[0].success for result in results[20:])
        await batched.close()

    asyncio.run(main())
