"""The addresses that a connection on somebody's behalf may reach: a host is resolved once, every address judged.

Clients connect to the addresses that `judged` returns, so that no second look-up can give another answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Protocol

from swe_ai_fleet.domain.command import address_of

_NAT64 = IPv6Network("64:ff9b::/96")
# The position of the IPv4 address in it is each network's own choice.
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_V4_COMPATIBLE = IPv6Network("::/96")
METADATA = frozenset(map(ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254")))
"""Metadata services of clouds that do not answer at a link-local address; the first looks like any other."""


class Resolver(Protocol):
    """Turns a name into addresses."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host as text, best first. Raises OSError if it has none."""
        ...


class SystemResolver:
    """This machine's own resolver."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in infos))


class UnknownHostError(Exception):
    """A host that has no address."""


class PrivateHostError(Exception):
    """A host with an address that is not public, or this machine's own."""


async def judged(host: str, port: int, *, private: bool = False, resolver: Resolver | None = None) -> tuple[str, ...]:
    """The addresses of a host, best first; with `private` whatever they are, else each of them public.

    Raises UnknownHostError, PrivateHostError.
    """
    if (literal := address_of(host)) is not None:
        addresses: Sequence[str] = (str(literal),)
    else:
        try:
            addresses = await (resolver or SystemResolver()).resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise UnknownHostError(f"the name {host} cannot be resolved: {error}") from error
    if not addresses:
        raise UnknownHostError(f"the name {host} has no address")
    for address in addresses:
        if address_of(address) is None or not (private or (is_public(address) and not _is_own(address))):
            raise PrivateHostError(f"the host {host} is not on the public internet")
    return tuple(addresses)


def is_public(address: str) -> bool:
    """Whether an address, as text, is public: not loopback, private, link-local, multicast, metadata or reserved.

    IPv6 forms that carry an IPv4 address (mapped, compatible, 6to4, Teredo, NAT64) are judged by that. Raises
    ValueError for what is not a valid address.
    """
    parsed = ip_address(address.partition("%")[0])
    return all(_is_public(each) for each in _embedded(parsed) or (parsed,))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and (address.is_site_local or address in _LOCAL_NAT64):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address in METADATA)


def _is_own(address: str) -> bool:
    """Whether a public address is this machine's, where its own services answer. The check sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0]) == str(probe.getpeername()[0])
    except OSError:
        # There is no route to it, so it is not this machine's.
        return False


def _embedded(address: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    if isinstance(address, IPv4Address):
        return ()
    if address.ipv4_mapped:
        return (address.ipv4_mapped,)
    if address.sixtofour:
        return (address.sixtofour,)
    if address.teredo:
        return address.teredo
    if address in _V4_COMPATIBLE or address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    return ()
