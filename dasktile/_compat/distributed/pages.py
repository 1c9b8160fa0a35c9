"""Pages of a scheduler's dashboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Scheduler

#: Distributed's page with dark colours of the page and its menu for browsers that prefer them.
_TEMPLATE = """{% extends "simple.html" %}
{% block extra_resources %}
<style>
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; }
  html { background: #111; }
  .navbar ul, .dropdown-content { background-color: #2b2b2b; }
  .navbar li a { color: #ddd; }
  .navbar li:hover a { color: black; }
  #navbar-toggle-icon img { filter: invert(0.85); }
}
</style>
{% endblock %}
"""


def dashboard_of(scheduler: Scheduler) -> Any:
    """The dashboard of a scheduler, None where it was not started."""
    for application in applications(scheduler):
        if any(path.endswith("/status") for path in getattr(application, "app_paths", ())):
            return application
    return None


def applications(scheduler: Scheduler) -> list[Any]:
    """Applications of the scheduler's HTTP server."""
    return list(scheduler.http_application.applications)


def has_page(application: Any, route: str) -> bool:
    """Whether an application serves a page."""
    return any(path.endswith(route) for path in getattr(application, "app_paths", ()))


def add_page(scheduler: Scheduler, name: str, document: Callable[..., None]) -> bool:
    """Add a page to a scheduler's dashboard, and to the menus of all its pages.

    Parameters
    ----------
    scheduler
        The scheduler; call this on the thread of its event loop.
    name
        Name of the page in the menus; its path is ``/name``.
    document
        Function of the scheduler, the variables of the template and a Bokeh document, which
        writes the page.

    Returns
    -------
    False where there is no dashboard.
    """
    dashboard = dashboard_of(scheduler)
    if dashboard is None:
        return False
    # where there is a dashboard, a Bokeh is installed that distributed supports
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    variables = template_variables(scheduler)
    application = BokehApplication(
        {f"/{name}": document}, scheduler, prefix=dashboard.prefix, template_variables=variables
    )
    application.initialize(IOLoop.current())
    scheduler.http_application.add_application(application)
    application.start()
    # distributed's own pages share this list, so their menus show the new page
    variables["pages"].append(name)
    return True


def remove_page(scheduler: Scheduler, name: str) -> None:
    """Remove a page that :func:`add_page` has added, if there is one."""
    for application in applications(scheduler):
        if has_page(application, f"/{name}"):
            scheduler.http_application.applications.remove(application)
            # since Bokeh 3.10 an error if it should wait on the thread of the event loop
            application.stop(wait=False)
    if dashboard_of(scheduler) is not None:
        from distributed.dashboard.scheduler import template_variables

        pages = template_variables(scheduler)["pages"]
        pages[:] = [page for page in pages if page != name]


def style(doc: Any) -> None:
    """Make a Bokeh document look like distributed's own pages, but dark where these are not."""
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env

    doc.template = env.from_string(_TEMPLATE)
    doc.theme = BOKEH_THEME
