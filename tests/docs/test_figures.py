# SPDX-License-Identifier: Apache-2.0
"""Figures of README and docs are in the results files they name; what ran where is on one page."""

import re

from tests.conftest import ROOT

GENERATED = {ROOT / f"docs/{name}.md" for name in ("claims", "configuration", "mistakes")}
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/*.md")} - GENERATED)
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"\]\(([^)\s]*)\)")
# 38.35, 1,707 and 86%, but not 1e-5.
FIGURE = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d+(?=%))(?![\w,.]*\d)")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
CONSTANTS = {  # versions, sections and sizes of papers, levels of tests, examples
    "README.md": "2.0 3.12 95",
    "choosing.md": "2.0",
    "cloud.md": "3.10 3.12",
    "comparing.md": "0.05 0.1 0.25 95 1,000 10,000 20,000",
    "data.md": "0.1 0.2 65,000 100,000 200,000",
    "extending.md": "10",
    "from_paper_to_code.md": "3.1 3.2 3.3 3.4 3.5 5.1 5.2 5.3 5.4 6.1 6.3 25,000 100,000 300,000",
    "getting_started.md": "3.12",
    "looking_inside.md": "3.35",
    "masked_lm.md": "0.15 0.3 30",
    "monitoring.md": "0.001",
    "parsing.md": "10,000",
    "pods.md": "0.1 0.2 75",
    "sweeps.md": "95",
    "translation.md": "29,000",
}
MOST_FIGURES = 150  # fewer would mean that the pattern finds them no more


def numbers(pattern, text):
    return {number.replace(",", "") for number in pattern.findall(text)}


def test_figures_are_those_of_the_results_files_that_their_section_names():
    checked = 0
    wrong = []
    for page in PAGES:
        constants = numbers(NUMBER, CONSTANTS.get(page.name, ""))
        for section in re.split(r"^(?=#+ )", page.read_text(encoding="utf-8"), flags=re.M):
            text = CODE.sub(" ", section)
            targets = {target.partition("#")[0] for target in TARGET.findall(text)}
            paths = [(page.parent / target) for target in targets if "results/" in target]
            known = numbers(NUMBER, " ".join(path.read_text(encoding="utf-8") for path in paths))
            found = numbers(FIGURE, TARGET.sub("]", text)) - constants
            checked += len(found)
            lost = found - known
            wrong += [f"{page.name}, {section.splitlines()[0]}: {number}" for number in lost]
    assert wrong == []
    assert checked > MOST_FIGURES


def test_what_ran_where_is_said_on_one_page():
    """Other pages link to it, and name no run of a GPU, a TPU or many machines of their own."""
    devices = ROOT / "docs/devices.md"
    says = re.compile(
        r"(?:not|never|nothing|no \w+|n't)(?: yet| been| was| were| has| have)* "
        r"(?:run|ran|tested|tried|built|compared) (?:on|with)? ?(?:a |an |several |real )?"
        r"(?:GPU|TPU|device|machine|bucket)|[Tt]ested (?:and|with|on) |[Oo]ne H200|an H200",
    )
    others = ("CONTRIBUTING.md", "Dockerfile", "experiments/results/plans.md")
    pages = [*PAGES, *(ROOT / name for name in others)]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages if page != devices}
    assert [(name, says.findall(text)) for name, text in texts.items() if says.search(text)] == []
    for name in ("README.md", "results.md", "pods.md", "plans.md", "faq.md", "CONTRIBUTING.md"):
        assert "devices.md" in texts[name], name
    machines = set(re.findall(r"^\| (\w[\w ]*?) \|", devices.read_text(encoding="utf-8"), re.M))
    rows = re.findall(r"^\| \[.*\| (\w[\w ]*?)(?:, 1 \w+)? \|$", texts["results.md"], re.M)
    assert len(rows) > 40 and set(rows) - {"compiled only"} <= machines
