"""What a drafter says of itself before anything is loaded."""

from typing import Any

from spsbench.errors import PlugInError
from spsbench.loop.site import Plan
from spsbench.loop.types import Drafter
from spsbench.plugins import arguments, check_all_there, in_name_of, named, plug_in
from spsbench.spec import Spec

BY_CLASS: Any = vars(Drafter)["plan"].__func__


def plan_of(drafter: Spec) -> Plan:
    """What a drafter is and needs, by its arguments.

    Raises:
        UsageError: no such drafter, or arguments that it refuses.
        PlugInError: one of another package whose plan fails, or is none.
    """
    maker = plug_in("drafters", drafter)
    check_all_there("drafters", drafter, maker)
    given = arguments(drafter, maker)
    if getattr(maker.plan, "__func__", None) is BY_CLASS and not hasattr(maker, "drawn"):
        raise PlugInError(
            f"{named('drafters', drafter)} has no drawn: expected Drawn.POINT, IID or DISTINCT, or "
            "a plan of its own"
        )
    with in_name_of("drafters", drafter):
        plan = maker.plan(**given)
    if not isinstance(plan, Plan):
        raise PlugInError(
            f"{named('drafters', drafter)} planned a {type(plan).__name__}: expected a Plan of "
            "spsbench.loop.types"
        )
    return plan
