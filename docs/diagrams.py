"""Draw the state tables of the protocol as Mermaid, for the docs.

``python docs/diagrams.py`` writes the diagram into docs/run.md between its marks; a
test asserts that what is committed is what the table says.
"""

from __future__ import annotations

from pathlib import Path

from greenroom.protocol import RUN_TRANSITIONS

PAGE = Path(__file__).with_name("run.md")
BEGIN, END = "<!-- diagram: run -->", "<!-- end of diagram -->"


def run_diagram() -> str:
    """Return the states of a run, as the table has them."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> new"]
    for state, events in RUN_TRANSITIONS.items():
        lines += [
            f"    {state.value} --> {target.value}: {event.__name__}"
            for event, targets in events.items()
            for target in targets
        ]
    return "\n".join([*lines, "    ended --> [*]", "```"])


def with_diagram(page: str, diagram: str) -> str:
    """Return *page* with *diagram* between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{diagram}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_diagram(PAGE.read_text(), run_diagram()))
