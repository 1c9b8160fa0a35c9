"""Results of functions, found from what is known of their arguments.

A rule is a function of :class:`.given.Given`, in a table by the module and the name of the function
that a task calls.  Where a rule is not sure, the size stays unknown: a wrong one is worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

from dask.utils import methodcaller

from dasktile._compat.dask import concatenate2
from dasktile.capture.rules.sources import is_uniform
from dasktile.capture.rules.trees import unwrap
from dasktile.lower.known import KnownResult
from dasktile.lower.result_rules import made, moved, products, reductions
from dasktile.lower.result_rules.elementwise import elementwise, is_elementwise
from dasktile.lower.result_rules.given import Given, Rule

#: Rules by the first part of the module, and the name, of a function.
RULES: Mapping[str, Rule] = {
    **reductions.RULES, **products.RULES, **made.RULES, **moved.RULES
}  # fmt: skip


class BoundRule(NamedTuple):
    """A rule, with the arguments that a function was bound to.

    Parameters
    ----------
    rule
        The rule.
    arguments, keywords
        Of `functools.partial`.
    """

    rule: Rule
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}

    def result(self, given: Given) -> KnownResult | None:
        """The result for the other arguments; None if it is unknown."""
        arguments = [*self.arguments, *given.arguments]
        keywords = {**self.keywords, **given.keywords}
        try:
            return self.rule(Given(arguments, keywords, given.is_listed))
        except Exception:
            # other arguments than a rule expects, as an axis that the block does not have
            return None


def rule_of(task: Any) -> BoundRule | None:
    """The rule of the function that a task calls; None if there is none.

    Parameters
    ----------
    task
        The task.
    """
    try:
        found = _rule_of_function(task.func)
    except TypeError:  # an unhashable callable
        return None
    if found is None and is_elementwise(task):
        return BoundRule(partial(elementwise, task.func))
    return found


@lru_cache(maxsize=1024)
def _rule_of_function(function: Any) -> BoundRule | None:
    parts = getattr(function, "funcs", None)
    if parts is not None and hasattr(function, "first"):
        # tlz.compose: Dask joins partial results, then reduces them
        call = unwrap(parts[-1])
        if len(parts) > 1 or unwrap(function.first).function is not concatenate2:
            return None
        name = name_of(call.function)
        joined = reductions.of_joined if name in reductions.OF_JOINED else None
        rule = reductions.RULES.get(name, joined)
        return None if rule is None else BoundRule(rule, call.args, call.keywords)
    if is_uniform(function):
        return BoundRule(made.uniform, (), unwrap(function).keywords)
    if isinstance(function, methodcaller):
        # a method of arrays
        return BoundRule(moved.reshaped) if function.method == "reshape" else None
    call = unwrap(function)
    name = name_of(call.function)
    rule = RULES.get(name)
    if rule is None and name in reductions.OF_BLOCK and not call.args:
        rule = partial(reductions.of_block, call.function)
    return None if rule is None else BoundRule(rule, call.args, call.keywords)


def name_of(function: Any) -> str:
    """The module and the name of a function; modules of a package below its first one count.

    Parameters
    ----------
    function
        Any function.
    """
    module = str(getattr(function, "__module__", ""))
    return f"{module.partition('.')[0]}.{getattr(function, '__name__', '')}"
