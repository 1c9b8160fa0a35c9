"""What a client computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed.overrides import install, uninstall

if TYPE_CHECKING:
    from distributed import Client

#: The methods of clients that compute, and their parameters for what is computed.
_COMPUTING = {"get": "dsk", "compute": "collections", "persist": "collections"}


class _Recorders:
    """The functions that receive the computations of one client, in order.

    All share one override, so that they can be removed in any order.
    """

    #: The attribute of a client that holds its recorders.
    ATTRIBUTE = "_dasktile_recorders"
    #: Diagnoses may begin and end in several threads.
    lock = threading.Lock()

    def __init__(self, client: Client) -> None:
        self.records: dict[object, Callable[[str, Any], None]] = {}
        self.overrides = [
            *(install(client, name, self._recording(client, name)) for name in _COMPUTING),
            install(client, self.ATTRIBUTE, self),
        ]

    def _recording(self, client: Client, name: str) -> Any:
        method = getattr(client, name)

        def recorded(_: Client, *args: Any, **kwargs: Any) -> Any:
            computed = args[0] if args else kwargs.get(_COMPUTING[name])
            for record in tuple(self.records.values()):
                record(name, computed)
            return method(*args, **kwargs)

        # a bound method: Dask finds the client of `Client.get` by it
        return MethodType(recorded, client)


def record_computations(client: Client, record: Callable[[str, Any], None]) -> Callable[[], None]:
    """Call a function with what each computation of a client computes, before it starts.

    Dask optimises graphs on the scheduler, so that its settings cannot be used for this.

    Parameters
    ----------
    client
        The client.
    record
        Receives the name of a method and what it computes: what is given to ``compute`` and
        ``persist``, and the expressions or graphs that are given to ``get``.

    Returns
    -------
    A function that ends this; several recordings of a client may end in any order.
    """
    token = object()
    with _Recorders.lock:
        recorders = vars(client).get(_Recorders.ATTRIBUTE) or _Recorders(client)
        recorders.records[token] = record

    def end() -> None:
        with _Recorders.lock:
            if recorders.records.pop(token, None) is not None and not recorders.records:
                for override in recorders.overrides:
                    uninstall(override)

    return end
