"""What a drafter says of itself before anything is loaded."""

from spsbench.errors import PlugInError
from spsbench.loop.site import Plan
from spsbench.plugins import arguments, check_all_there, in_name_of, named, plug_in
from spsbench.spec import Spec


def plan_of(drafter: Spec) -> Plan:
    """What a drafter is and needs, by its arguments.

    Raises:
        UsageError: no such drafter, or arguments that it refuses.
        PlugInError: one of another package whose plan fails, or is none.
    """
    maker = plug_in("drafters", drafter)
    check_all_there(drafter, maker)
    given = arguments(drafter, maker)
    with in_name_of("drafters", drafter):
        plan = maker.plan(**given)
    if not isinstance(plan, Plan):
        raise PlugInError(
            f"{named('drafters', drafter)} planned a {type(plan).__name__}: expected a Plan of "
            "spsbench.loop.types"
        )
    return plan
