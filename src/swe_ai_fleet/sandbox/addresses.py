"""The addresses of host names, and which of them are the public internet."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_V4_COMPATIBLE = IPv6Network("::/96")
# Azure's metadata and DNS server has an address that looks like any other.
_METADATA = frozenset({IPv4Address("168.63.129.16")})


async def resolved(host: str, port: int) -> list[str]:
    """The addresses of a host name by this machine's resolver, best first. Raises OSError where it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an address, as text, is public: not loopback, private, link-local, multicast, metadata or reserved.

    IPv6 forms that carry an IPv4 address (mapped, compatible, 6to4, Teredo, NAT64) are judged by that. Raises
    ValueError for what is no address.
    """
    parsed = ip_address(address.partition("%")[0])
    return all(_is_public(each) for each in _embedded(parsed) or (parsed,))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address.is_site_local:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address in _METADATA)


def _embedded(address: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    if isinstance(address, IPv4Address):
        return ()
    if address.ipv4_mapped:
        return (address.ipv4_mapped,)
    if address.sixtofour:
        return (address.sixtofour,)
    if address.teredo:
        return address.teredo
    if address in _V4_COMPATIBLE or any(address in network for network in _NAT64):
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    return ()
