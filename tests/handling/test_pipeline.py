import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from types import coroutine
from typing import Any, cast

import pytest

from pump.attribute import Attribute, OnError, Rest, Scope, Steps, Wait, attributes_of
from pump.clock import ManualClock, Signal, SystemClock
from pump.context import Context
from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    MessageAction,
    RejectMessageAction,
)
from pump.handlers import DontAckOnError, Retry
from pump.handling.pipeline import Pipeline, PipelineError
from support.pipelines import Failing, Harness, NoProcessor, Noting, Shout, Stepwise


@pytest.fixture(params=["blocking", "awaiting"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness(request.param)


class Forgetful(Attribute):
    """Forgets the `yield from`."""

    def around(self, request: object, rest: Rest) -> Steps:
        rest(request)
        yield from rest.sleep(0)
        return "done"


# -- running


def test_the_top_decorator_is_outermost(harness: Harness) -> None:
    notes: list[str] = []
    handle = harness.handler(lambda _: notes.append("handler"))
    handle = Noting("top", notes)(Noting("bottom", notes)(handle))

    harness.ready(handle)()

    assert notes == ["top in", "bottom in", "handler", "bottom out", "top out"]


def test_one_generator_serves_both_colours(harness: Harness) -> None:
    handle = Shout()(harness.handler(lambda request: f"<{request}>"))

    assert harness.ready(handle)("tea") == "<tea!>!"


def test_without_attributes_the_handle_runs_bare(harness: Harness) -> None:
    handle = harness.handler(str.upper)
    pipeline = Pipeline((), harness.colour, Scope())

    result = pipeline.run(handle, "tea")
    assert (asyncio.run(cast("Any", result)) if harness.colour == "awaiting" else result) == "TEA"


def test_a_pipeline_serves_a_new_instance_with_every_message(harness: Harness) -> None:
    class Handler:
        def __init__(self, name: str) -> None:
            self.handle = harness.handler(lambda request: f"{name}: {request}")

    pipeline = Pipeline([Shout()], harness.colour, Scope())

    def run(name: str) -> object:
        result = pipeline.run(Handler(name).handle, "tea")
        return asyncio.run(cast("Any", result)) if harness.colour == "awaiting" else result

    assert [run("first"), run("second")] == ["first: tea!!", "second: tea!!"]


def test_a_pipeline_keeps_nothing_of_a_message(harness: Harness) -> None:
    class Thing:
        pass

    run = harness.around(Shout(), lambda _: None)
    stepwise = harness.around(Stepwise(lambda request, rest: rest(request)), lambda request: request)
    request = Thing()
    gone = weakref.ref(request)

    run(request)
    stepwise(request)
    del request
    gc.collect()

    assert gone() is None


def test_nothing_runs_before_it_is_asked_for(harness: Harness) -> None:
    runs = Failing()

    def steps(request: object, rest: Rest) -> Steps:
        later = rest(request)
        assert runs.runs == 0
        return (yield from later)

    assert harness.around(Stepwise(steps), runs)() == "done"


def test_the_rest_may_run_several_times(harness: Harness) -> None:
    runs = Failing()

    def twice(request: object, rest: Rest) -> Steps:
        yield from rest(request)
        return (yield from rest(request))

    assert harness.around(Stepwise(twice), runs)() == "done"
    assert runs.runs == 2


def test_a_pipeline_may_run_within_itself() -> None:
    @Shout()
    def handle(depth: str) -> str:
        return depth if len(depth) > 4 else cast("str", pipeline.run(handle, depth))

    pipeline = Pipeline(attributes_of(handle), "blocking", Scope())

    assert pipeline.run(handle, "") == "!" * 10


def test_many_messages_run_at_once_in_threads() -> None:
    @Shout()
    def handle(request: str) -> str:
        barrier.wait(5)
        return request

    barrier = threading.Barrier(8)
    run = partial(Pipeline(attributes_of(handle), "blocking", Scope()).run, handle)
    results: list[object] = []

    for _ in range(2):
        threads = [threading.Thread(target=lambda n: results.append(run(n)), args=(str(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(cast("list[str]", results)) == sorted(f"{n}!!" for n in range(8) for _ in range(2))


def test_many_messages_run_at_once_in_tasks() -> None:
    @Shout()
    async def handle(request: int) -> int:
        await asyncio.sleep(0)
        return request

    run = partial(Pipeline(attributes_of(handle), "awaiting", Scope()).run, handle)

    async def main() -> Any:
        return await asyncio.gather(*(run(n) for n in range(50)))

    assert asyncio.run(main()) == [f"{n}!!" for n in range(50)]


# -- nothing is acknowledged in silence


def test_an_attribute_that_forgets_the_handler_is_an_error(harness: Harness) -> None:
    runs = Failing()

    with pytest.raises(PipelineError, match="without having run the handler"):
        harness.around(Forgetful(), runs)()

    assert runs.runs == 0


def test_an_attribute_may_answer_instead_of_the_handler_when_it_says_so(harness: Harness) -> None:
    runs = Failing()

    def skip(request: object, rest: Rest) -> Steps:
        yield from rest.sleep(0)
        return rest.skip("instead")

    assert harness.around(Stepwise(skip), runs)() == "instead"
    assert runs.runs == 0


def test_a_skip_is_forgotten_by_the_next_message(harness: Harness) -> None:
    def skip_first(request: object, rest: Rest) -> Steps:
        yield from rest.sleep(0)
        return rest.skip("skipped") if request == "first" else None

    run = harness.around(Stepwise(skip_first), Failing())

    assert run("first") == "skipped"
    with pytest.raises(PipelineError):
        run("second")


def test_a_yield_without_from_is_an_error_and_closes_the_generator() -> None:
    closed: list[bool] = []

    def steps(request: object, rest: Rest) -> Steps:
        try:
            yield cast("Wait", rest(request))
        finally:
            closed.append(True)
        return None

    with pytest.raises(PipelineError, match="`yield from` was meant"):
        Harness("blocking").around(Stepwise(steps), Failing())()
    assert closed == [True]

    with pytest.raises(RuntimeError, match="yield was used instead of yield from"):
        Harness("awaiting").around(Stepwise(steps), Failing())()


@pytest.mark.parametrize("nothing", [None, "text", 5])
def test_an_around_that_gives_no_generator_is_an_error(harness: Harness, nothing: Any) -> None:
    with pytest.raises((TypeError, PipelineError, RuntimeError)):
        harness.around(Stepwise(lambda _, __: nothing), Failing())()


def test_a_blocking_handler_that_returns_a_coroutine_is_an_error() -> None:
    async def late(request: object) -> None:
        """Would never be awaited."""

    for attributes in ((), (Shout(),)):
        with pytest.raises(PipelineError, match="returned a coroutine"):
            Pipeline(attributes, "blocking", Scope()).run(lambda request: late(request), "tea")  # noqa: PLW0108


def test_an_async_handler_may_return_any_awaitable() -> None:
    class Eventually:
        def __await__(self) -> Generator[Any, None, str]:
            yield from asyncio.sleep(0).__await__()
            return "done"

    @coroutine
    def by_generator(request: object) -> Generator[Any, None, str]:
        yield
        return "done"

    pipeline = Pipeline([Shout()], "awaiting", Scope())

    async def main(handle: Callable[..., object]) -> object:
        return await pipeline.run(handle, "tea")

    assert asyncio.run(main(lambda _: Eventually())) == "done!"
    assert asyncio.run(main(by_generator)) == "done!"
    with pytest.raises(PipelineError, match="cannot be awaited"):
        asyncio.run(main(lambda _: 5))


def test_a_rest_kept_after_its_message_is_refused() -> None:
    kept: list[Rest] = []

    def keep(request: object, rest: Rest) -> Steps:
        kept.append(rest)
        return rest(request)

    Harness("blocking").around(Stepwise(keep), Failing())()

    with pytest.raises(PipelineError, match="kept its `rest`"):
        next(kept[0]("later"))


# -- errors


@pytest.mark.parametrize("error", [ValueError("no"), DontAckAction(), SystemExit(3), StopAsyncIteration()])
def test_an_error_passes_through_every_attribute_as_it_is(harness: Harness, error: BaseException) -> None:
    notes: list[str] = []
    handle = Noting("a", notes)(Noting("b", notes)(harness.handler(Failing(error))))

    with pytest.raises(type(error)) as raised:
        harness.ready(handle)()

    assert raised.value is error
    assert notes == ["a in", "b in", "b out", "a out"]


@pytest.mark.requirement("B-01")
def test_a_decision_passes_with_its_cause(harness: Harness) -> None:
    def body(request: object) -> None:
        raise DontAckAction from cause

    cause = KeyError("stock")

    with pytest.raises(DontAckAction) as raised:
        harness.around(Shout(), body)()

    assert raised.value.__cause__ is cause
    assert DontAckAction.__base__ is DeferMessageAction.__base__ is RejectMessageAction.__base__ is MessageAction


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
def test_what_would_end_a_generator_in_silence_becomes_an_error_at_the_leaf(
    harness: Harness, kind: type[BaseException]
) -> None:
    seen: list[BaseException] = []

    def steps(request: object, rest: Rest) -> Steps:
        try:
            return (yield from rest(request))
        except Exception as error:
            seen.append(error)
            raise

    with pytest.raises((PipelineError, RuntimeError)) as raised:
        harness.around(Stepwise(steps), Failing(kind("value")))()

    assert seen == [raised.value]
    assert isinstance(raised.value.__cause__, kind)


def test_a_stop_iteration_from_making_the_awaitable_is_an_error() -> None:
    def handle(request: object) -> Awaitable[object]:
        raise StopIteration("value")

    async def main() -> object:
        return await Pipeline([Shout()], "awaiting", Scope()).run(handle, "tea")

    with pytest.raises(PipelineError, match="StopIteration"):
        asyncio.run(main())


def test_a_stop_iteration_of_an_attribute_is_an_error(harness: Harness) -> None:
    def steps(request: object, rest: Rest) -> Steps:
        yield from rest(request)
        return next(iter(()))

    with pytest.raises(RuntimeError):
        harness.around(Stepwise(steps), Failing())()


# -- cancellation


@pytest.mark.requirement("B-15")
def test_a_cancellation_reaches_the_handler_and_every_attribute_once() -> None:
    notes: list[str] = []

    @Noting("attribute", notes)
    async def handle(request: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            notes.append("handler out")

    async def main() -> None:
        task = asyncio.ensure_future(Pipeline(attributes_of(handle), "awaiting", Scope()).run(handle, "tea"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert notes == ["attribute in", "handler out", "attribute out"]


def test_a_dropped_run_is_closed_from_the_inside_out() -> None:
    notes: list[str] = []

    @Noting("attribute", notes)
    async def handle(request: object) -> None:
        try:
            await pause()
        finally:
            notes.append("handler out")

    @coroutine
    def pause() -> Generator[None, None, None]:
        yield

    run = cast("Any", Pipeline(attributes_of(handle), "awaiting", Scope()).run(handle, "tea"))
    run.send(None)

    run.close()

    assert notes == ["attribute in", "handler out", "attribute out"]


def test_an_async_handler_is_not_begun_by_making_the_run() -> None:
    runs = Failing()
    run = cast("Any", Pipeline([Shout()], "awaiting", Scope()).run(Harness("awaiting").handler(runs), "tea"))

    run.close()

    assert runs.runs == 0


# -- what rest can do


def test_rest_sleeps_by_the_clock(harness: Harness) -> None:
    def steps(request: object, rest: Rest) -> Steps:
        assert (yield from rest.sleep(2.5)) is False
        assert rest.clock is harness.clock
        assert rest.colour == harness.colour
        return (yield from rest(request))

    harness.around(Stepwise(steps), Failing())()

    assert cast("ManualClock", harness.clock).waits[-1] == 2.5


@pytest.mark.parametrize("reason", ["the pump stops", "the dispatch is cancelled"])
def test_a_sleep_is_cut_short(harness: Harness, reason: str) -> None:
    def steps(request: object, rest: Rest) -> Steps:
        assert (yield from rest.sleep(3600)) is True
        return (yield from rest(request))

    clock = SystemClock()
    harness.context = Context(NoProcessor(), "Handler", clock=clock, stopping=Signal())
    if reason == "the pump stops":
        assert harness.context.stopping is not None
        clock.alarm(0.01, harness.context.stopping.set)
    else:
        clock.alarm(0.01, harness.context.cancel)

    assert harness.around(Stepwise(steps), Failing(), clock=clock)() == "done"


def test_a_sleep_outside_of_any_dispatch_lasts() -> None:
    clock = ManualClock(automatic=True)
    pipeline = Pipeline([Stepwise(_sleeping)], "blocking", Scope(clock=clock))

    assert pipeline.run(lambda request: request, "tea") == "tea"
    assert clock.monotonic() == 1_000_005.0


def _sleeping(request: object, rest: Rest) -> Steps:
    assert (yield from rest.sleep(5)) is False
    return (yield from rest(request))


def test_rest_calls_a_function_of_the_handlers_colour(harness: Harness) -> None:
    other = harness.handler(lambda request: f"other {request}")

    def steps(request: object, rest: Rest) -> Steps:
        assert (yield from rest.call(len, "four")) == 4
        return (yield from rest(cast("str", (yield from rest.call(other, request)))))

    assert harness.around(Stepwise(steps), lambda request: request)("tea") == "other tea"


def test_rest_refuses_to_call_an_async_function_for_a_blocking_handler() -> None:
    async def other() -> None:
        """Would never be awaited."""

    run = Harness("blocking").around(Stepwise(lambda _, rest: rest.call(other)), Failing())

    with pytest.raises(PipelineError, match="returned a coroutine"):
        run()


def test_rest_knows_the_instance_that_handles() -> None:
    seen: list[object] = []

    def steps(request: object, rest: Rest) -> Steps:
        seen.append(rest.instance())
        return rest(request)

    class Handler:
        def handle(self, request: object) -> None:
            """Nothing."""

    handler = Handler()
    pipeline = Pipeline([Stepwise(steps)], "blocking", Scope())

    pipeline.run(handler.handle, "tea")
    pipeline.run(lambda _: None, "tea")

    assert seen == [handler, None]


# -- preparing


def test_an_attribute_is_prepared_once_a_pipeline(harness: Harness) -> None:
    scopes: list[Scope] = []

    class Counting(Attribute):
        def prepare(self, scope: Scope) -> Attribute:
            scopes.append(scope)
            return Shout()

    handle = Counting()(harness.handler(lambda request: request))
    first = harness.ready(handle, channel="first")
    second = harness.ready(handle, channel="second")

    assert [first("a"), first("b"), second("c")] == ["a!!", "b!!", "c!!"]
    assert [scope.channel for scope in scopes] == ["first", "second"]


def test_a_prepare_that_returns_nothing_shows_at_start() -> None:
    class Lost(Attribute):
        def prepare(self, scope: Scope) -> Attribute:
            return cast("Attribute", None)

    with pytest.raises(ConfigurationError, match="prepare has to return an Attribute"):
        Pipeline([Lost()], "blocking", Scope())


def test_an_async_around_shows_at_start() -> None:
    class Wrong(Attribute):
        async def around(self, request: object, rest: Rest) -> None:  # type: ignore[override]
            """Would be awaited by nobody."""

    class Worse(Attribute):
        async def around(self, request: object, rest: Rest) -> AsyncIterator[Wait]:  # type: ignore[override]
            yield Wait()

    for wrong in (Wrong(), Worse()):
        with pytest.raises(ConfigurationError, match="for async handlers too"):
            Pipeline([wrong], "awaiting", Scope())


def test_an_attribute_without_around_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Attribute has no around"):
        Pipeline([Attribute()], "blocking", Scope()).run(len, "tea")


def test_what_is_meant_to_be_inherited_says_so() -> None:
    with pytest.raises(NotImplementedError):
        OnError().decide(ValueError())


def test_decorators_keep_working_when_stacked_on_one_handler(harness: Harness) -> None:
    failing = Failing(ValueError(), ValueError())
    handle = DontAckOnError()(Retry(attempts=3, jitter=0)(harness.handler(failing)))

    assert harness.ready(handle)() == "done"
    assert failing.runs == 3
