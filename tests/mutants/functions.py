"""Gives a function other code, in place: everybody who has the function has the change."""

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

from mutants.operators import Mutant


def changed_code(mutant: Mutant, file: Path) -> CodeType:
    """The code of the changed function."""
    module = compile(mutant.tree, str(file), "exec")
    return next(code for code in _codes(module) if _is(code, mutant.function, mutant.starts))


def functions(file: Path, name: str, starts: int) -> Sequence[FunctionType]:
    """The functions that were made of that place of the file; usually one."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType and each.__code__.co_filename == str(file) and _is(each.__code__, name, starts)
    ]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _is(code: CodeType, name: str, starts: int) -> bool:
    return (code.co_qualname, code.co_firstlineno) == (name, starts)
