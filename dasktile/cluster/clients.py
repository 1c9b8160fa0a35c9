"""The client of an argument: the given client, or the current one."""

from __future__ import annotations

from distributed import Client, default_client


def client_of(client: object) -> Client:
    """The client given, or the current one for None.

    Raises
    ------
    TypeError
        If it is not a ``distributed.Client``.
    ValueError
        If it is closed, or if None is given and there is no current client.
    """
    if client is None:
        try:
            resolved: Client = default_client()
        except ValueError:
            raise ValueError(
                "there is no current client: start one with distributed.Client(...), or pass client"
            ) from None
    elif isinstance(client, Client):
        resolved = client
    else:
        raise TypeError(
            "client must be a distributed.Client, or None for the current one;"
            f" got {client!r} of type {type(client).__name__}"
        )
    if resolved.status in ("closing", "closed"):
        raise ValueError(f"client={resolved!r} is closed")
    return resolved
