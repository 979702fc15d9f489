"""Addresses to listen on, as text and as errors."""

from mtl_common.errors import ServeError


def address(host: str, port: int) -> str:
    """`host:port`, an IPv6 host in brackets.

    >>> address("::1", 80)
    '[::1]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(host: str, port: int, reason: str) -> ServeError:
    """The error of an address that cannot be had."""
    return ServeError(
        f"cannot listen on {address(host, port)} ({reason.lower()}); choose another --port or --host"
    )
