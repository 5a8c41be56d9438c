"""Hook of the site: copies the results and sources that docs/ links beside the pages."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"(\]\()\.\./([^)#]+)")
GALLERY = tuple(
    f"results/{run}/page.html" for run in ("table1-smollm2", "table1-nano", "figure1-nano")
)
NAMED = re.compile(r"\[([\w-]+\.md)\]\((?P<page>[\w-]+\.md)(?P<place>#[\w-]+)?\)")
REPOSITORY_ONLY = re.compile(r"^> In the repository.*?\n\n", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add the gallery and every file that a page links outside of docs/, under its path."""
    pages = [file.content_string for file in files.documentation_pages()]
    linked = {found.group(2) for page in pages for found in OUTSIDE.finditer(page)}
    for name in sorted(linked | set(GALLERY)):
        if (ROOT / name).is_file():  # else the link is dead, and the build says so
            files.append(File.generated(config, copy_of(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link the copies, and pages by their titles in place of their files' names."""
    markdown = NAMED.sub(titled, REPOSITORY_ONLY.sub("", markdown))
    return OUTSIDE.sub(lambda found: found.group(1) + copy_of(found.group(2)), markdown)


def titled(link: re.Match[str]) -> str:
    """Return a link whose text is the title of its page, up to a colon."""
    heading = (ROOT / "docs" / link["page"]).read_text().partition("\n")[0]
    title = heading.removeprefix("# ").partition(":")[0]
    return f"[{title}]({link['page']}{link['place'] or ''})"


def copy_of(name: str) -> str:
    """Path of the copy: a text that a browser shows, where it would build or download the file."""
    return f"{name}.txt" if name.endswith((".md", ".py")) else name
