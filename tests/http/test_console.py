"""The console as it is served: to whom, with which policy, and when not; and what it asks of the broker."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from assay import console_picture
from assay.reference_broker.http.guard import is_console
from tests.http.conftest import Served, serve

FOLDER = files("assay.reference_broker.http") / "console"
FILES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir() if not path.name.startswith("__")}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
_PAIR = re.compile(r"--([\w-]+): (light-dark\(#\w{6}, #\w{6}\));")


def test_anybody_may_load_the_page(guarded: Served) -> None:
    """It holds nothing; who has no token gets no further. A link on another site leads to it as well."""
    for headers in ({}, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}):
        client = guarded.client(1, **headers)
        page = client.get("/console/")
        assert (page.status_code, page.text) == (200, FILES["index.html"])
        assert client.get("/api/v1/whoami").status_code in (401, 403)


def test_it_is_found_below_any_path(served: Served) -> None:
    answer = served.client().get("/console")
    assert (answer.status_code, answer.headers["location"]) == (308, "console/")
    assert not re.search(r"""(src|href)=["']/""", FILES["index.html"])


@pytest.mark.parametrize("name", sorted(FILES))
def test_its_files_have_the_policy(served: Served, name: str) -> None:
    answer = served.client().get(f"/console/{name}")
    assert (answer.status_code, answer.text) == (200, FILES[name])
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self';" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    kind = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kind[name.rpartition(".")[2]])
    again = served.client().get(f"/console/{name}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/console/__init__.py", "/console/..%2Fguard.py", "/console/nothing", "/consoles"])
def test_nothing_else_is_served(served: Served, path: str) -> None:
    answer = served.client().get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_route")


def test_it_can_be_switched_off() -> None:
    with serve(console=False) as broker:
        answer = Served(broker).client().get("/console/")
        assert (answer.status_code, answer.json()["code"]) == (404, "no_such_route")


def test_only_its_own_paths_are_open(guarded: Served) -> None:
    assert not any(is_console(path) for path in ("/", "/consoles", "/api/v1/console", "/api/v1/queues/console/stats"))
    assert guarded.client(1).post("/console/", json={}).status_code == 401


def test_nothing_comes_from_elsewhere() -> None:
    for name, text in FILES.items():
        elsewhere = re.findall(r"https?://[^\s'\"`)]+", text.replace("http://www.w3.org/2000/svg", ""))
        assert not elsewhere, (name, elsewhere)


def test_no_text_becomes_markup() -> None:
    """And nothing that the policy refuses: no inline style or script."""
    for name, text in SCRIPTS.items():
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|style=", text)
        assert not found, (name, found)
    assert not re.search(r"<style|style=|\son\w+=|<script>", FILES["index.html"])


def test_it_has_the_colours_of_the_reports() -> None:
    reports = dict(_PAIR.findall((files("assay.reports") / "assets" / "site.css").read_text(encoding="utf-8")))
    own = dict(_PAIR.findall(FILES["console.css"]))
    assert len(own) > 15
    assert own.items() <= reports.items()


@pytest.mark.parametrize(
    ("listener", "user", "scopes", "tenant"),
    [
        (0, "reader", ["read"], None),
        (1, "admin", ["admin", "read", "write"], None),
        (0, "tom", ["read", "write"], "acme"),
        (1, "ann", ["read", "write"], None),
    ],
)
def test_who_one_is(guarded: Served, listener: int, user: str, scopes: list[str], tenant: str | None) -> None:
    """A user beyond loopback does not administer without access rules; neither does one of a tenant."""
    client = guarded.client(listener)
    passwords = {"ann": "secret", "tom": "hidden"}
    if user in passwords:
        client.auth = (user, passwords[user])
    else:
        client.headers["authorization"] = f"Bearer assay_{user}"
    name = user if user in passwords else "ann"
    assert client.get("/api/v1/whoami").json() == {"username": name, "tenant": tenant, "scopes": scopes}


def test_figures_of_queues_come_in_pages(served: Served) -> None:
    client = served.client()
    for name in ("page.a", "page.b", "page.c"):
        assert client.post("/api/v1/queues", json={"name": name, "settings": {"partitions": 1}}).status_code == 201
    client.post("/api/v1/queues/page.b/messages", json={"messages": [{"payload": "x"}]})
    first = client.get("/api/v1/stats/queues", params={"prefix": "page.", "limit": 2}).json()
    assert [(each["queue"], each["depth"]) for each in first["queues"]] == [("page.a", 0), ("page.b", 1)]
    asked = {"prefix": "page.", "page_token": first["next_page_token"]}
    rest = client.get("/api/v1/stats/queues", params=asked).json()
    assert ([each["queue"] for each in rest["queues"]], rest["next_page_token"]) == (["page.c"], "")


def test_figures_of_dead_letters_come_when_asked_for(guarded: Served) -> None:
    """And of no queue that the caller may not read."""
    ann, tom = guarded.client(), guarded.client()
    ann.auth, tom.auth = ("ann", "secret"), ("tom", "hidden")
    ann.post("/api/v1/queues/orders/messages", json={"messages": [{"payload": "x"}]})
    body = {"group": "g", "wait_s": 20}
    (taken,) = ann.post("/api/v1/queues/orders/consume", json=body).json()["messages"]
    ann.post("/api/v1/queues/orders/settle", json={"outcome": "reject", "receipts": [taken["receipt"]]})

    def names(client: object, **asked: object) -> set[str]:
        answer = client.get("/api/v1/stats/queues", params=asked)  # type: ignore[attr-defined]
        return {each["queue"] for each in answer.json()["queues"]}

    assert "$dlq/orders" not in names(ann)
    assert "$dlq/orders" in names(ann, dead_letters=True)
    assert names(tom, dead_letters=True) == {"orders"}


def test_without_chromium_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_picture.shutil, "which", lambda _: None)
    assert console_picture.add_picture(tmp_path) == "No picture of the console: Chromium is not installed."
