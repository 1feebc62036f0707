"""Finds the dispatcher that a command line names: `module:attribute`, or a function that returns one."""

import difflib
import inspect
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from pump.errors import ConfigurationError
from pump.program.dispatcher import Dispatcher

_PUMP: Final = Path(__file__).parents[1]
_MISSING: Final = object()


def load_dispatcher(target: str) -> Dispatcher:
    """The dispatcher of that name, or the one that the function of that name returns. Searches the current folder too.

    A ConfigurationError says in one line what is wrong; its `__cause__` is the original error.
    """
    module_name, path = _parsed(target)
    sys.path[:0] = [folder for folder in [str(Path.cwd())] if folder not in sys.path]
    module = _imported(module_name)
    found = _found(module, path)
    if isinstance(found, Dispatcher):
        return found
    if isinstance(found, type) or not callable(found):
        what = "is a class" if isinstance(found, type) else f"is of type {type(found).__name__}"
        raise ConfigurationError(f"{target} {what}, not a Dispatcher; {_suggestion(module)}")
    made = _made(target, found)
    if not isinstance(made, Dispatcher):
        raise ConfigurationError(f"{target} returns {type(made).__name__}, not a Dispatcher; {_suggestion(module)}")
    return made


def _parsed(target: str) -> tuple[str, str]:
    module, _, path = target.partition(":")
    path = path.removesuffix("()")
    if not module or not path:
        example = (module.removesuffix(".py") or "shop").replace("/", ".")
        raise ConfigurationError(
            f"{target!r} names no dispatcher: write module:attribute, such as {example}:dispatcher"
        )
    if "/" in module or module.endswith(".py"):
        example = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigurationError(f"{module!r} is a file, where a module is expected: write {example}:{path}")
    return module, path


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise ConfigurationError(
                f"there is no module {missing!r}: run pump in the folder that contains it, or install it"
            ) from error
        raise _unusable(f"{name} cannot be imported", error) from error


def _found(module: ModuleType, path: str) -> object:
    found: object = module
    for name in path.split("."):
        found = getattr(found, name, _MISSING)
        if found is _MISSING:
            raise ConfigurationError(f"{module.__name__} has no {path!r}; {_suggestion(module, path)}")
    return found


def _made(target: str, make: Callable[[], object]) -> object:
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{target} cannot be called without arguments ({error}): name one that can") from error
    try:
        made = make()
    except (Exception, SystemExit) as error:
        raise _unusable(f"{target} cannot be made", error) from error
    if inspect.iscoroutine(made):
        made.close()
        raise ConfigurationError(
            f"{target} is `async def`: a function that makes a dispatcher must be a `def`, as it opens nothing"
        )
    return made


def _unusable(what: str, error: BaseException) -> ConfigurationError:
    return ConfigurationError(f"{what}: {in_a_line(error)}")


def in_a_line(error: BaseException) -> str:
    """The error in one line, with the file and line in the user's own code that raised it."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    if not isinstance(error, ConfigurationError):
        text = f"{type(error).__name__}: {text}"
    place = _place(error)
    return f"{text}{f' ({place})' if place else ''}"


def _place(error: BaseException) -> str:
    """The file and line in the user's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not Path(frame.filename).is_relative_to(_PUMP)
    ]
    own = [frame for frame in frames if not Path(_short(frame.filename)).is_absolute()]
    last = (own or frames)[-1:]
    return f"{_short(last[0].filename)}, line {last[0].lineno}" if last else ""


def _short(file: str) -> str:
    path = Path(file)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and "site-packages" not in file else file


def _suggestion(module: ModuleType, wanted: str = "") -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Dispatcher)]
    if not names:
        return f"make one there: dispatcher = Dispatcher(…), and name {module.__name__}:dispatcher"
    close = difflib.get_close_matches(wanted, names, n=1) or names
    return f"did you mean {module.__name__}:{close[0]}?"
