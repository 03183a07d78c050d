"""The run-time type checker of tests: an int is accepted where a float is asked for.

jaxtyping's import hook decorates every function. Its own decorator binds arguments to signatures
and checks them twice per call, and compiles two functions whenever an inner function is made: a
third of the time of all tests. `checked` is as strict, checks once, and compiles an inner function
once.
"""

import dataclasses
import functools
import inspect
import typing
from types import CellType, CodeType, FunctionType, SimpleNamespace

import jaxtyping
from beartype import BeartypeConf, beartype

# A violation is a TypeError, as jaxtyping's own are: what reads files may catch those.
check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_decorate_slowly = jaxtyping.jaxtyped
_one_call = jaxtyping.jaxtyped("context")  # within it, a letter of a shape stands for one size
_config = jaxtyping.config
_TARGET = "__beartype_func"  # the keyword by which a checker that beartype made knows its function
_templates: dict[CodeType, tuple[dict[str, typing.Any], FunctionType | None]] = {}


def install(modules: list[str]) -> None:
    """Check all functions of modules that are imported from now on."""
    jaxtyping.install_import_hook(modules, "shape_checks.check")
    jaxtyping.jaxtyped = _jaxtyped  # the hook's decorator, by the name that the hook uses


def _jaxtyped(thing=None, *, typechecker=None):
    return checked if thing is None else _decorate_slowly(thing, typechecker=typechecker)


def checked(thing):
    """Decorate a function, or a dataclass, to check shapes and types of each call."""
    if isinstance(thing, type):
        made = vars(thing).get("__init__")
        if dataclasses.is_dataclass(thing) and not hasattr(made, "__wrapped__") and made:
            thing.__init__ = checked(made)
        return thing
    if not _is_plain(thing):  # such as generators, whose arguments are checked when they are called
        return _decorate_slowly(thing, typechecker=check)
    if not thing.__annotations__:
        return thing
    checker = _checker(thing)

    @functools.wraps(thing)
    def call(*args, **kwargs):
        __tracebackhide__ = True
        if _config.jaxtyping_disable:
            return thing(*args, **kwargs)
        with _one_call:
            return checker(*args, **kwargs)

    return call


def _is_plain(thing) -> bool:
    return isinstance(thing, FunctionType) and not (
        inspect.isgeneratorfunction(thing)
        or inspect.iscoroutinefunction(thing)
        or inspect.isasyncgenfunction(thing)
    )


def _checker(function: FunctionType) -> FunctionType:
    """A function that checks and calls another; inner functions of one source share its code."""
    hints, template = _templates.get(function.__code__, (None, None))
    if hints != function.__annotations__:
        hollow = _hollow(function)
        template = check(hollow)
        if template is hollow:  # nothing to check
            template = None
        _templates[function.__code__] = (function.__annotations__, template)
    if template is None:
        return function
    keywords = dict(template.__kwdefaults__ or {})
    assert _TARGET in keywords, "this version of beartype uses another keyword"
    checker = _copy(template, template.__closure__)
    checker.__kwdefaults__ = keywords | {_TARGET: function}
    return checker


def _hollow(function: FunctionType) -> FunctionType:
    """A copy without the values that surround it, whose annotations are types.

    They are `Any` where a name is not defined yet.
    """
    copy = _copy(function, tuple(CellType() for _ in function.__closure__ or ()))
    copy.__annotations__ = {
        name: _resolved(hint, function.__globals__)
        for name, hint in function.__annotations__.items()
    }
    return copy


def _resolved(hint, names):
    holder = SimpleNamespace(__annotations__={"value": hint})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["value"]
    except Exception:  # as jaxtyping does: NameError, or what a subscript raises
        return typing.Any


def _copy(function: FunctionType, closure) -> FunctionType:
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        closure,
    )
    functools.update_wrapper(copy, function)
    del vars(copy)["__wrapped__"]
    copy.__kwdefaults__ = dict(function.__kwdefaults__ or {})
    return copy
