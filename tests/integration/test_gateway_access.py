"""Who comes in through the gateway: tokens, sessions, hosts and origins, over real sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import connect

from tests.gateway_house import BEARER, STRANGER, TOKEN, House, closed, house, raw, refused

NAMED = "https://pages.example.org"


@pytest.fixture(scope="module")
async def home() -> AsyncIterator[House]:
    async with house() as built:
        yield built


async def test_the_bearer_comes_in_and_has_a_name_and_others_do_not(home: House) -> None:
    answer = await home.client.get("/api/who", headers=BEARER | {"Fleet-Caller": "ci@example.org"})
    assert answer.json() == {"token": TOKEN, "caller": "ci@example.org", "by": "bearer"}
    shown = ("Bearer wrong", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer", "Bearer \xff")
    for headers in (
        [],
        *([("Authorization", value)] for value in shown),
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")],
        [("Cookie", f"fleet-session={TOKEN}")],
        [("X-Forwarded-For", "127.0.0.1")],
        # A token that is wrong counts against a cookie that is right.
        [("Cookie", await home.sign_in()), ("Authorization", "Bearer wrong")],
    ):
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        answer = await home.client.get(f"/api/who?token={TOKEN}", headers=encoded)
        refused(answer, 401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for name in ("", "two words", "x" * 65, "a/b"):
        answer = await home.client.get("/api/who", headers=BEARER | {"Fleet-Caller": name})
        refused(answer, 400, "INVALID_ARGUMENT", "fleet-caller")


async def test_no_spelling_of_a_path_leads_around_the_auth_middleware(home: House) -> None:
    for path in ("/%61pi/who", "/api/./who", "//api/who", "/API/who", "/api/who/", "/x/../api/who"):
        answer = await raw(home.port, f"GET {path} HTTP/1.1\r\nHost: {home.authority}\r\nConnection: close\r\n\r\n")
        assert answer.split()[1] in (b"401", b"404"), answer
        assert b"caller" not in answer


async def test_a_session_stands_for_the_token(home: House) -> None:
    ours = {"Origin": home.url}
    answer = await home.client.post("/api/session", json={"token": TOKEN}, headers=ours)
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/", f"Max-Age={7 * 86_400}", "HttpOnly", "SameSite=Strict"}
    name, _, value = cookie.partition("=")
    assert name == f"fleet-session-{home.port}", "cookies know no ports: the name must"
    assert TOKEN not in value
    shown = await home.client.get("/api/session", headers={"Cookie": f"other=1; {cookie}"})
    assert shown.json()["by"] == "cookie" and shown.json()["expires_at_ms"] > 0
    answer = await home.client.get("/api/who", headers={"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})
    assert answer.json() == {"token": TOKEN, "caller": "", "by": "cookie"}
    ended = await home.client.delete("/api/session", headers=ours | {"Cookie": cookie})
    assert ended.status_code == 204
    assert f"{name}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict" in ended.headers.get_list("set-cookie")
    refused(await home.client.get("/api/session"), 401)


async def test_two_fleets_on_one_host_do_not_take_each_others_cookies(home: House) -> None:
    async with house() as other:
        cookie = await home.sign_in()
        refused(await other.client.get("/api/who", headers={"Cookie": cookie}), 401)
        renamed = cookie.replace(home.port, other.port)
        refused(await other.client.get("/api/who", headers={"Cookie": renamed}), 401)
        both = f"{cookie}; {await other.sign_in()}"
        assert (await other.client.get("/api/who", headers={"Cookie": both})).status_code == 200


async def test_sessions_end_and_cannot_be_made_up(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, value = (await home.sign_in()).partition("=")
    assert TOKEN not in str(base64.urlsafe_b64decode(value))
    spoilt = [
        f"{value[:place]}{'A' if value[place] != 'A' else 'B'}{value[place + 1 :]}"
        for place in range(0, len(value) - 2, 7)
    ]
    made_up = ("", ".", "..", "x.y.z", "9" * 500, "A" * 5_000, "9999999999.." + "0" * 64)
    for forged in (*spoilt, *made_up, value[:-1], value + "0"):
        refused(await home.client.get("/api/who", headers={"Cookie": f"{name}={forged}"}), 401)
    planted = f"{name}=planted; {name}={value}"
    assert (await home.client.get("/api/who", headers={"Cookie": planted})).status_code == 200
    monkeypatch.setattr("services.gateway.access.credentials.SECONDS", -1)
    refused(await home.client.get("/api/who", headers={"Cookie": await home.sign_in()}), 401)


async def test_wrong_tokens_are_few() -> None:
    async with house() as built:
        answers = [await built.client.post("/api/session", json={"token": f"guess {n}"}) for n in range(12)]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
        told = refused(answers[-1], 429, "RESOURCE_EXHAUSTED")
        assert int(answers[-1].headers["retry-after"]) == told["retry_after_seconds"] >= 1
        refused(await built.client.post("/api/session", json={"token": TOKEN}), 429)
        # Who has the token already is not kept out by somebody who guesses.
        assert (await built.client.get("/api/who", headers=BEARER)).status_code == 200


async def test_other_hosts_are_not(home: House) -> None:
    ours = ("127.0.0.1:{}", "localhost:{}", "[::1]:{}", "LOCALHOST:{}")
    for host in (one.format(home.port) for one in ours):
        assert (await home.client.get("/api/who", headers=BEARER | {"Host": host})).status_code == 200, host
    for host in (
        *("evil.example", "evil.example:{}", "localhost", "localhost:1", "127.0.0.1", "10.0.0.1:{}", "0.0.0.0:{}"),
        *("localhost.evil.example:{}", "127.0.0.1.nip.example:{}"),
    ):
        headers = {"Host": host.format(home.port)}
        for path in ("/api/who", "/api/session", "/", "/app.js"):
            refused(await home.client.get(path, headers=BEARER | headers), 421, "FAILED_PRECONDITION", "host")
        assert (await home.client.get("/health", headers=headers)).status_code == 200
    for line in ("Host: a b", "Host: ", f"Host: user@{home.authority}", "Host: localhost:99999"):
        answer = await raw(home.port, f"GET /api/who HTTP/1.1\r\n{line}\r\nConnection: close\r\n\r\n")
        assert answer.split()[1] in (b"400", b"421"), line


async def test_named_hosts_are_ours_and_over_https_the_cookie_is_bound_to_the_host() -> None:
    name = "fleet.example.org"
    async with house(http_hosts=f"{name}, other.example.org:8443") as built:
        hosts = {name: 200, f"a.{name}": 421, "other.example.org:8443": 200, "other.example.org": 421}
        for host, status in hosts.items():
            answer = await built.client.get("/api/who", headers=BEARER | {"Host": host})
            assert answer.status_code == status, host
        proxied = {"Host": name, "Origin": f"https://{name}"}
        answer = await built.client.post("/api/session", json={"token": TOKEN}, headers=proxied)
        set_cookie = answer.headers["set-cookie"]
        assert set_cookie.startswith("__Host-fleet-session=") and "; Secure" in set_cookie
        cookie = {"Cookie": set_cookie.partition(";")[0]}
        assert (await built.client.post("/api/who", headers=proxied | cookie)).json()["by"] == "cookie"


async def test_a_foreign_page_can_do_nothing(home: House) -> None:
    cookie, before = await home.sign_in(), home.room.calls
    for origin in (
        *(STRANGER, "null", "http://localhost:{}", "http://127.0.0.1:1", "https://127.0.0.1", "http://127.0.0.1", ""),
        *("http://127.0.0.1:{}.evil.example", "file://", "http://evil@127.0.0.1:{}", "chrome-extension://abc"),
    ):
        headers = {"Origin": origin.format(home.port)}
        for shown in ({"Cookie": cookie}, BEARER, {}):
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
                answer = await home.client.request(method, "/api/count", headers=headers | shown)
                assert answer.status_code == 403, (origin, method, shown)
                assert not [name for name in answer.headers if name.startswith("access-control")]
        asked = headers | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        refused(await home.client.options("/api/count", headers=asked), 403, "PERMISSION_DENIED", "origin")
    assert home.room.calls == before


async def test_a_cookie_needs_our_own_page_behind_it(home: House) -> None:
    cookie = {"Cookie": await home.sign_in()}
    ours = {"Origin": home.url}
    before = home.room.calls
    refused(await home.client.post("/api/count", json={}, headers=cookie), 403, field="origin")
    refused(await home.client.delete("/api/who", headers=cookie), 403, field="origin")
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""):
        answer = await home.client.post("/api/count", content=b"{}", headers=cookie | ours | {"content-type": kind})
        refused(answer, 415, field="content-type")
    for site in ("cross-site", "same-site"):
        refused(await home.client.get("/api/who", headers=cookie | {"Sec-Fetch-Site": site}), 403)
    assert home.room.calls == before
    for site in ("same-origin", "none"):
        assert (await home.client.get("/api/who", headers=cookie | {"Sec-Fetch-Site": site})).status_code == 200
    assert (await home.client.delete("/api/who", headers=cookie | ours)).status_code == 200
    assert (await home.client.post("/api/count", json={}, headers=cookie | ours)).status_code == 201


async def test_pages_of_named_origins_call_with_the_bearer_only() -> None:
    async with house(http_origins=f"{NAMED}/, https://second.example") as built:
        cookie = await built.sign_in()
        page = {"Origin": NAMED}
        asked = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        answer = await built.client.options("/api/who", headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == NAMED
        assert "access-control-allow-credentials" not in answer.headers
        answer = await built.client.post("/api/who", headers=page | BEARER | {"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == NAMED
        assert "access-control-allow-credentials" not in answer.headers and "Origin" in answer.headers["vary"]
        refused(await built.client.post("/api/who", headers=page | {"Cookie": cookie}), 401)
        refused(await built.client.post("/api/session", json={"token": TOKEN}, headers=page), 403)
        refused(await built.client.options("/api/who", headers=asked | {"Origin": NAMED + ".evil.example"}), 403)
        refused(await built.client.get("/api/who", headers=BEARER | {"Origin": STRANGER}), 403)


async def test_websockets_are_let_in_by_the_same_rules(home: House) -> None:
    url = f"ws://{home.authority}/api/ws/watch"
    cookie = await home.sign_in()
    for origin, headers in ((None, BEARER | {"Fleet-Caller": "me"}), (home.url, {"Cookie": cookie})):
        async with connect(url, origin=origin, additional_headers=headers, proxy=None) as socket:
            assert json.loads(await socket.recv()) == {"token": TOKEN, "caller": headers.get("Fleet-Caller", "")}
    foreign = {"host": "127.0.0.1", "port": int(home.port)}
    for code, where, shown in (
        (4401, url, {}),
        (4401, url, {"Authorization": "Bearer wrong"}),
        (4401, f"{url}?token={TOKEN}", {}),
        (4403, url, {"origin": STRANGER, "Cookie": cookie}),
        (4403, url, {"origin": STRANGER, **BEARER}),
        (4403, url, {"Cookie": cookie}),
        (4403, f"ws://evil.example:{home.port}/api/ws/watch", {**foreign, **BEARER}),
        (4400, url, {**BEARER, "Fleet-Caller": "two words"}),
    ):
        assert await closed(where, **shown) == code, shown


async def test_what_other_pages_embed_takes_nothing_from_our_own() -> None:
    async with house(http_requests_per_minute=3) as built:
        cookie = {"Cookie": await built.sign_in()}
        embedded = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        for site in ("cross-site", "same-site"):
            for path in ("/", "/app.js", "/api/who", "/api/session"):
                headers = {"Sec-Fetch-Site": site, **embedded}
                refused(await built.client.get(path, headers=headers), 403, field="sec-fetch-site")
                refused(await built.client.get(path, headers=headers | cookie), 403, field="sec-fetch-site")
        framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        refused(await built.client.get("/", headers=framed), 403)
        # A link that somebody follows is another thing.
        followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await built.client.get("/", headers=followed)).status_code in (200, 404)
        assert (await built.client.get("/api/who", headers=cookie)).status_code == 200
