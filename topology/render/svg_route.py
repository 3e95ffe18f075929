"""A route as a picture: the machine with the links that the route uses, how busy each is, and the cut that limits it.

It is the picture of the machine with other things stressed: colour and width tell how busy a link is instead of what
it is, devices outside the group are grey, and a dashed line runs across the links of the narrowest cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.render.svg import Story, drawing, scene_of
from topology.render.svg_marks import Marks
from topology.render.svg_route_order import Order, order_of
from topology.render.svg_route_use import cables, roles_of, side_of, stand_ins, uses_of
from topology.render.svg_route_words import LEGEND, NO_LINES, entries_of, words_of

if TYPE_CHECKING:
    from topology.model import Topology
    from topology.render.svg import Scene
    from topology.routing.choose import Route

_MOST_NUMBERED: Final = 16
_FEWEST_NUMBERED: Final = 3  # two are round any ring


def route_svg(topology: Topology, route: Route) -> str:
    """Draw a route on its machine; the text is the whole file, the same for the same route.

    Args:
        topology: that the graph of the route was made from.
        route: as `choose` made it.
    """
    scene = scene_of(topology)
    stands_for = stand_ins(scene, topology)
    side, order = side_of(route), _order(route)
    marks = Marks(stands_for=stands_for)
    drawn = {marks.key(link.a, link.b) for link in scene.topology.links}
    uses = uses_of(route, stands_for, cables(scene, topology), side)
    marks = Marks(
        uses={key: use for key, use in uses.items() if key in drawn},
        stands_for=stands_for,
        roles=roles_of(route, topology, stands_for, side),
        badges=_badges(order, route, scene),
        has_arrows=route.graph.size <= _MOST_NUMBERED,
    )
    words = words_of(route, topology, order, side, marks)
    told = f"{words.headline}. {words.result}. {words.cut}."
    story = Story(
        head=words.head,
        foot=words.foot,
        entries=entries_of(marks),
        legend_head=LEGEND if marks.uses else NO_LINES,
        told=told,
    )
    return drawing(scene, marks, story)


def _order(route: Route) -> Order | None:
    schedule = route.chosen.entry.schedule
    if schedule is None or route.graph.size > _MOST_NUMBERED or schedule.graph.size != route.graph.size:
        return None
    return order_of(schedule)


def _badges(order: Order | None, route: Route, scene: Scene) -> dict[str, str]:
    """The number on each GPU; none where one box stands for several."""
    ids = route.graph.device_ids
    boxes = {name for plan in scene.plans if not plan.part.alike for name in plan.anchors}
    if order is None or len(ids) < _FEWEST_NUMBERED or not boxes.issuperset(ids):
        return {}
    if order.ring:
        return {ids[rank]: str(at + 1) for at, rank in enumerate(order.ring)}
    return {ids[rank]: str(hops) for rank, hops in enumerate(order.hops)}
