"""A report as its reader has it: parsed, and nothing of it but text and tags."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "wbr", "input", "br", "hr"}


class Page(HTMLParser):
    """A page taken apart: it must be well-formed, with ids that are unique, and fetch nothing."""

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.heads: list[str] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(path.read_text())
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))
        assert all(address.startswith("#") for address in self.fetched), self.fetched
        assert all(re.fullmatch(r"#[\w-]+|(\.\./|[\w.%-]+/)*trials/[\w-]+/", link) for link in self.links), self.links
        assert not re.search(r"@import|url\((?!#)", path.read_text())
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if tag == "a" and name in ("href", "xlink:href"):
                self.links.append(value)
            elif name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.fetched.append(value)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "h2":
            self.heads.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)
        if "h2" in self.open:
            self.heads[-1] += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
