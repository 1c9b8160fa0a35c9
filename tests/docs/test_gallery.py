"""The notebooks of the gallery are complete and listed; the build of the site runs them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
NOTEBOOKS = sorted(path for path in GALLERY.glob("*.md") if path.stem != "index")

#: Parts of absolute paths, and of addresses of one machine.
ABSOLUTE = re.compile(
    r"(?<![\w.:/])(?:/(?:home|tmp|work|usr|var|root|Users|mnt)/|[A-Z]:\\)|file://"
)

CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\{doc\}`([^`]+)`")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def notebook(request: pytest.FixtureRequest) -> str:
    return request.param.read_text(encoding="utf-8")


def body(notebook: str) -> str:
    return notebook.split("---\n", 2)[2]


def cells(notebook: str) -> list[ast.Module]:
    return [ast.parse(code) for code in CELL.findall(notebook)]


def is_explanation(module: ast.Module) -> bool:
    """Whether the value of the last expression, which the page shows, is an explanation."""
    if not module.body or not isinstance(module.body[-1], ast.Expr):
        return False
    value: ast.expr = module.body[-1].value
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.dump(statement.targets[0]) == ast.dump(
            ast.Name(getattr(value, "id", ""), ast.Store())
        ):
            value = statement.value
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "dasktile.explain"


def test_number() -> None:
    assert len(NOTEBOOKS) == 15


def test_front_matter(notebook: str) -> None:
    start, front, _ = notebook.split("---\n", 2)
    assert not start
    fields = yaml.safe_load(front)
    assert fields["jupytext"]["text_representation"] == {"extension": ".md", "format_name": "myst"}
    assert fields["kernelspec"]["name"] == "python3"


def test_one_title(notebook: str) -> None:
    text = CELL.sub("", body(notebook))
    assert text.lstrip().startswith("# ")
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def test_sections(notebook: str) -> None:
    sections = re.findall(r"^## (.*)$", body(notebook), re.MULTILINE)
    for section in "The change", "What was gained", "What to take from it":
        assert sections.count(section) == 1
    assert sections[-1] == "What to take from it"


def test_fences(notebook: str) -> None:
    assert len(CELL.findall(notebook)) == notebook.count("{code-cell}")
    assert notebook.count("```") % 2 == 0


def test_shows_an_explanation(notebook: str) -> None:
    assert any(map(is_explanation, cells(notebook)))


def test_checks_values(notebook: str) -> None:
    assert "the values are equal" in notebook


def test_no_absolute_paths(notebook: str) -> None:
    assert not ABSOLUTE.findall(notebook)


def test_clusters_and_folders_are_closed(notebook: str) -> None:
    code = "\n".join(map(ast.unparse, cells(notebook)))
    for opened, closed in (
        (r"^cluster = ", "cluster.close()"),
        (r"^client = ", "client.close()"),
        (r"^folder = ", "folder.cleanup()"),
    ):
        if re.search(opened, code, re.MULTILINE):
            assert closed in code


def test_links(notebook: str) -> None:
    names = {path.stem for path in GALLERY.glob("*.md")}
    assert set(LINK.findall(notebook)) <= names
    assert "](" not in CELL.sub("", notebook)


def test_index() -> None:
    index = (GALLERY / "index.md").read_text(encoding="utf-8")
    names = {path.stem for path in NOTEBOOKS}
    assert sorted(LINK.findall(index)) == sorted(names)
    (toctree,) = re.findall(r"^```\{toctree\}\n(.*?)^```$", index, re.MULTILINE | re.DOTALL)
    listed = [line for line in toctree.splitlines() if line and not line.startswith(":")]
    assert sorted(listed) == sorted(names)
