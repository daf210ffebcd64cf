"""Lay out the built site as one of several published versions: `python scripts/publish_site.py SITE FOLDER --url URL`.

`FOLDER` holds what is published, and is served at `URL`:

- `0.1/`: the site of the newest 0.1.x. A patch release replaces it; the other versions stay as they were.
- `latest/`: a redirect for each page of the newest version. `llms.txt` and `objects.inv` are copies.
- `index.html`: a redirect to `latest/`.
- `versions.json`: what the selector in the header of each page lists.

The same site and the same folder make the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
RELEASE = re.compile(r"(\d+\.\d+)\.\d+")
LATEST = "latest"
COPIED = ("llms.txt", "objects.inv")
"""Files that programs fetch: they may not run the script of a redirect."""
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>Redirecting</title>
<link rel="canonical" href="{target}">
<script>location.replace("{target}" + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={target}"></noscript>
<a href="{target}">This page has moved.</a>
"""


def publish(site: Path, folder: Path, release: str, url: str) -> None:
    """Add the site of a release to the folder, or replace the site of an earlier patch release."""
    found = RELEASE.fullmatch(release)
    if found is None:
        raise SystemExit(f"Only releases such as 0.1.0 are published, got {release!r}.")
    if not (site / "index.html").exists():
        raise SystemExit(f"{site} has no index.html. Build the site first: `just docs`.")
    version = found[1]
    releases = _read(folder) | {version: release}
    versions = sorted(releases, key=_numbers, reverse=True)
    _replace(site, folder / version)
    (folder / version / "sitemap.xml").write_text(_sitemap(_pages(site), f"{url.rstrip('/')}/{version}/"))
    _redirect_latest(folder, versions[0])
    (folder / "index.html").write_text(REDIRECT.format(target=f"{LATEST}/"))
    (folder / ".nojekyll").write_text("")
    listed = [
        {"version": one, "title": releases[one], "aliases": [LATEST] if one == versions[0] else []} for one in versions
    ]
    (folder / "versions.json").write_text(json.dumps(listed, indent=2) + "\n")


def _read(folder: Path) -> dict[str, str]:
    """Return the release that each published version shows."""
    file = folder / "versions.json"
    return {one["version"]: one["title"] for one in json.loads(file.read_text())} if file.exists() else {}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _pages(site: Path) -> list[str]:
    """Return the paths of all pages, such as `how-to/cron/`."""
    pages = (page.parent.relative_to(site).as_posix() for page in site.rglob("index.html"))
    return sorted("" if page == "." else f"{page}/" for page in pages)


def _replace(site: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(site, target)


def _redirect_latest(folder: Path, version: str) -> None:
    shutil.rmtree(folder / LATEST, ignore_errors=True)
    for page in _pages(folder / version):
        up = "../" * (page.count("/") + 1)
        (folder / LATEST / page).mkdir(parents=True, exist_ok=True)
        (folder / LATEST / page / "index.html").write_text(REDIRECT.format(target=f"{up}{version}/{page}"))
    for name in COPIED:
        if (folder / version / name).exists():
            shutil.copyfile(folder / version / name, folder / LATEST / name)


def _sitemap(pages: list[str], base: str) -> str:
    """Return the list of all pages. The selector reads it to stay on the same page of another version."""
    lines = "".join(f"  <url><loc>{escape(base + page)}</loc></url>\n" for page in pages)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    return f"{head}{lines}</urlset>\n"


def main() -> None:
    current = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="what `just docs` has built")
    parser.add_argument("folder", type=Path, help="the published versions; it may be empty")
    parser.add_argument("--url", required=True, help="where the folder is served, such as https://docs.example.com/")
    parser.add_argument("--release", default=current, help="default: the version in pyproject.toml")
    options = parser.parse_args()
    publish(options.site, options.folder, options.release, options.url)


if __name__ == "__main__":
    main()
