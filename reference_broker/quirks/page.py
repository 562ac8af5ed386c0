"""The quirks for people: a table for the terminal, and the page ``docs/quirks.md``."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from assay.reference_broker.quirks import PROFILES, QUIRKS, Profile, Quirk
from assay.reference_broker.trace.terminal import WholeTable

_INTRODUCTION = """# Quirks

<!-- Written by `assay quirks --markdown`; a test holds it to the code. -->

A client that works with a correct broker may still meet incorrect ones. The reference broker imitates deviations of
real brokers, each on its own or all of one broker together:

```yaml
quirks: [mosquitto-2.0]             # a profile
# quirks: [retained-only-once, ...] # or single quirks, or both
```

`assay serve --quirk mosquitto-2.0` does the same, and so does `Broker(BrokerConfig(quirks=("mosquitto-2.0",)))` in a
test. Quirks belong to one broker: others in the same process behave as configured, and a broker without quirks pays
nothing for them. They are for tests of clients; nobody should rely on such a broker.

Each quirk names the statements that it breaks, where the deviation is reported, and the cases of the suite that notice
it: those fail (in brackets: only report it, where the standard recommends but does not demand), the others pass. A
profile is compared with the real broker where that is installed.
"""


def profiles_with(quirk: Quirk) -> list[str]:
    """Names of the profiles that a quirk belongs to."""
    return [profile.name for profile in PROFILES.values() if quirk.name in profile.quirks]


def quirks_table(quirks: Iterable[Quirk]) -> Table:
    """Name, what it does, statements, citation."""
    table = WholeTable("quirk", "what the broker does", "statements", "reported", show_lines=True)
    for quirk in quirks:
        profiles = "".join(f"\n[dim]{name}[/]" for name in profiles_with(quirk))
        table.add_row(f"[bold]{quirk.name}[/]{profiles}", quirk.what, "\n".join(quirk.statements), quirk.citation)
    return table


def profiles_table() -> Table:
    """Name, broker, number of quirks."""
    table = WholeTable("profile", "broker", "quirks")
    for profile in PROFILES.values():
        table.add_row(f"[bold]{profile.name}[/]", profile.what, str(len(profile.quirks)))
    return table


def quirks_page() -> str:
    """The whole page in Markdown."""
    lines = [
        _INTRODUCTION,
        "## Profiles",
        "",
        "| profile | broker | quirks | not imitated |",
        "| --- | --- | --- | --- |",
    ]
    lines += [_profile_row(profile) for profile in PROFILES.values()]
    lines += ["", "## Single quirks", "", "| quirk | what the broker does | statements | reported | cases |"]
    lines.append("| --- | --- | --- | --- | --- |")
    lines += [_row(quirk) for quirk in QUIRKS.values()]
    return "\n".join(lines) + "\n"


def _profile_row(profile: Profile) -> str:
    names = ", ".join(f"`{name}`" for name in profile.quirks)
    return f"| `{profile.name}` | {profile.what} | {names} | {profile.missing} |"


def _row(quirk: Quirk) -> str:
    cases = [f"`{case}`" for case in quirk.fails] + [f"(`{case}`)" for case in quirk.reports]
    cells = (f"`{quirk.name}`", quirk.what, ", ".join(quirk.statements), _link(quirk.citation), ", ".join(cases) or "-")
    return f"| {' | '.join(cells)} |"


def _link(citation: str) -> str:
    """A Markdown link; pages of ours are named from the folder ``docs``."""
    if citation.startswith("https://github.com/"):
        _, owner, repository, *_, number = citation.removeprefix("https://").split("/")
        return f"[{owner}/{repository} {number}]({citation})"
    page = citation.removeprefix("docs/")
    return f"[{page.partition('#')[0]}]({page})"
