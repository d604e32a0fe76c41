"""Where a call to an outside agent may really go."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from swe_ai_fleet.agents.outside_agent import AgentFault
from swe_ai_fleet.domain.endpoint import AgentEndpoint, EndpointRules
from swe_ai_fleet.sandbox.addresses import METADATA, Resolver, SystemResolver, is_public

MAX_ADDRESSES = 4


async def target_of(endpoint: AgentEndpoint, rules: EndpointRules, resolver: Resolver | None = None) -> str:
    """The endpoint's addresses as gRPC takes them, each of them allowed. Raises AgentFault.

    A name is resolved once, here, so that the addresses that were judged are the ones that are called; without a
    resolver by the system's own.
    """
    addresses = await _addresses(endpoint, resolver or SystemResolver())
    named = rules.names(endpoint)
    for address in addresses:
        if not (is_public(address) or (named and (endpoint.is_address or not _is_guarded(address)))):
            raise AgentFault(
                f"the agent at {endpoint} is not on the public internet (its address is {address})",
                hint="name it in FLEET_AGENT_ENDPOINTS, without a *; a link-local one as an address",
            )
    places = [
        f"[{address}]:{endpoint.port}" if ":" in address else f"{address}:{endpoint.port}" for address in addresses
    ]
    return f"{'ipv6' if ':' in addresses[0] else 'ipv4'}:{','.join(places)}"


async def _addresses(endpoint: AgentEndpoint, resolver: Resolver) -> Sequence[str]:
    """The host's addresses of one family, IPv4 first."""
    if endpoint.is_address:
        return [endpoint.host]
    try:
        found = tuple(await resolver.resolve(endpoint.host, endpoint.port))
    except (OSError, UnicodeError) as error:
        raise AgentFault(f"the host of the agent at {endpoint} cannot be resolved: {error}") from None
    addresses = [each for each in found if ":" not in each] or found
    if not addresses:
        raise AgentFault(f"the host of the agent at {endpoint} has no address")
    return addresses[:MAX_ADDRESSES]


def _is_guarded(text: str) -> bool:
    """Whether an address belongs to the machine's own surroundings, where names of strangers must not lead."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    tunnelled = isinstance(address, IPv6Address) and bool(address.sixtofour or address.teredo or address.is_reserved)
    return (
        tunnelled
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (isinstance(address, IPv4Address) and address.is_reserved)
        or address in METADATA
    )
