"""Kinds of text files by their names: prose, markup, programming languages."""

import re
from pathlib import PurePath

TABLE = """
text            .txt .text
Markdown        .md .markdown
markup          .rst .adoc .org .tex .pod .html .htm .xml
Python          .py .pyi .pyx
C               .c .h
C++             .cc .cpp .cxx .hpp .hh
CUDA            .cu .cuh
Objective-C     .m .mm
Rust            .rs
Go              .go
Zig             .zig
Nim             .nim
D               .d
Java            .java
Kotlin          .kt
Scala           .scala
C#              .cs
F#              .fs
JavaScript      .js .mjs .jsx .vue
TypeScript      .ts .tsx
CSS             .css .scss
Ruby            .rb
PHP             .php
Perl            .pl .pm
Lua             .lua
R               .r
Julia           .jl
Haskell         .hs
OCaml           .ml
Clojure         .clj
Elixir          .ex
Erlang          .erl
Lisp            .lisp .el .scm
Swift           .swift
Dart            .dart
Fortran         .f90 .f
assembly        .asm .s
shell           .sh .bash .zsh .fish .ps1
SQL             .sql
configuration   .yaml .yml .toml .ini .cfg .cmake .mk
Verilog         .v .sv
VHDL            .vhd
"""
LANGUAGES = {suffix: line[:16].strip() for line in TABLE.splitlines() if line for suffix in line[16:].split()}
MANUAL = re.compile(r"man([1-9n])/[^/]+\.\1[a-z]*\Z")


def language_of(path: PurePath) -> str | None:
    """The kind of text that the name of a file tells, None for an unknown one.

    >>> [language_of(PurePath(path)) for path in ("src/a.PY", "man/de/man1/ls.1", "lib/a.1")]
    ['Python', 'manual page', None]
    """
    found = LANGUAGES.get(path.suffix.lower())
    return "manual page" if found is None and MANUAL.search(path.as_posix()) else found
